import hashlib
import random
import re
from collections import Counter
from itertools import product

import pytest

from tf_transformer import files
from tf_transformer.corpora import toy_corpus
from tf_transformer.corpora.toy_corpus import (
    ADJECTIVES,
    FEW,
    HE,
    IT,
    MANY,
    ME,
    MODALS,
    NONE,
    NOUNS,
    PLURAL,
    PLURALS,
    SHE,
    THEY,
    THIRD,
    VERBS,
    WE,
    WHAT,
    WHO,
    Clause,
    Phrase,
    Sentence,
    corpus,
    german_phrase,
    realise,
    translate_pair,
    write_corpus,
)

# ------------------------------------------------------------- an oracle by hand: declension, then whole sentences
CARDINALS = dict(FEW + MANY)


def np(text):
    """The tree of an English noun phrase: np("the two old men"); "which", "how many", "any" and "no" as determiners."""
    text, many = re.subn(r"^how many ", "", text)
    *before, noun = text.split()
    plural = noun not in {n.en for n in NOUNS}
    noun = next(n for n in NOUNS if noun in (n.en, n.en + "s", PLURALS.get(n.en)))
    det = {"an": "a", "these": "this"}.get(before[0], before[0]) if before else "a"
    det = "how many" if many else det if det in ("the", "a", "this", "my", "our", "any", "no", "which") else "a"
    number = next(((word, CARDINALS[word]) for word in before if word in CARDINALS), ("", ""))
    adjective = next((adjective for adjective in ADJECTIVES if adjective.en in before), None)
    return Phrase(noun, det, PLURAL if plural else THIRD, adjective, number)


def adj(en):
    return next(adjective for adjective in ADJECTIVES if adjective.en == en)


def verb(en, frame=None):
    return next(v for v in VERBS if v.en == en and frame in (None, v.frame))


def clause(subject, verb_en, obj=None, to=None, frame=None, **rest):
    nominal = {
        name: np(value) if isinstance(value, str) else value for name, value in (("object", obj), ("recipient", to))
    }
    rest.update({name: value for name, value in nominal.items() if value is not None})
    return Clause(np(subject) if isinstance(subject, str) else subject, verb(verb_en, frame), **rest)


def is_(subject, adjective, **rest):
    return clause(subject, "be", predicate=adj(adjective), **rest)


@pytest.mark.parametrize(
    ("english", "nominative", "accusative", "dative"),
    [
        # after der-words: weak
        ("the old man", "der alte Mann", "den alten Mann", "dem alten Mann"),
        ("the old woman", "die alte Frau", "die alte Frau", "der alten Frau"),
        ("the old book", "das alte Buch", "das alte Buch", "dem alten Buch"),
        ("the old men", "die alten Männer", "die alten Männer", "den alten Männern"),
        ("this red coat", "dieser rote Mantel", "diesen roten Mantel", "diesem roten Mantel"),
        ("this red lamp", "diese rote Lampe", "diese rote Lampe", "dieser roten Lampe"),
        ("this red shirt", "dieses rote Hemd", "dieses rote Hemd", "diesem roten Hemd"),
        ("these red shirts", "diese roten Hemden", "diese roten Hemden", "diesen roten Hemden"),
        ("which big dog", "welcher große Hund", "welchen großen Hund", "welchem großen Hund"),
        ("which big cat", "welche große Katze", "welche große Katze", "welcher großen Katze"),
        ("which big horse", "welches große Pferd", "welches große Pferd", "welchem großen Pferd"),
        ("which big cats", "welche großen Katzen", "welche großen Katzen", "welchen großen Katzen"),
        # after ein-words: mixed
        ("a small hat", "ein kleiner Hut", "einen kleinen Hut", "einem kleinen Hut"),
        ("a small city", "eine kleine Stadt", "eine kleine Stadt", "einer kleinen Stadt"),
        ("a small house", "ein kleines Haus", "ein kleines Haus", "einem kleinen Haus"),
        ("no young doctor", "kein junger Arzt", "keinen jungen Arzt", "keinem jungen Arzt"),
        ("no young queen", "keine junge Königin", "keine junge Königin", "keiner jungen Königin"),
        ("no young child", "kein junges Kind", "kein junges Kind", "keinem jungen Kind"),
        ("no young children", "keine jungen Kinder", "keine jungen Kinder", "keinen jungen Kindern"),
        ("any young queens", "keine jungen Königinnen", "keine jungen Königinnen", "keinen jungen Königinnen"),
        ("my sick brother", "mein kranker Bruder", "meinen kranken Bruder", "meinem kranken Bruder"),
        ("my sick sister", "meine kranke Schwester", "meine kranke Schwester", "meiner kranken Schwester"),
        ("my sick girl", "mein krankes Mädchen", "mein krankes Mädchen", "meinem kranken Mädchen"),
        ("my sick brothers", "meine kranken Brüder", "meine kranken Brüder", "meinen kranken Brüdern"),
        ("our new bus", "unser neuer Bus", "unseren neuen Bus", "unserem neuen Bus"),
        ("our new door", "unsere neue Tür", "unsere neue Tür", "unserer neuen Tür"),
        ("our new car", "unser neues Auto", "unser neues Auto", "unserem neuen Auto"),
        ("our new cars", "unsere neuen Autos", "unsere neuen Autos", "unseren neuen Autos"),
        # without an article: strong, also after a numeral, but not after article and numeral
        ("fresh apples", "frische Äpfel", "frische Äpfel", "frischen Äpfeln"),
        ("two fresh eggs", "zwei frische Eier", "zwei frische Eier", "zwei frischen Eiern"),
        ("how many poor men", "wie viele arme Männer", "wie viele arme Männer", "wie vielen armen Männern"),
        ("the three rich teachers", "die drei reichen Lehrer", "die drei reichen Lehrer", "den drei reichen Lehrern"),
        ("my six tired cows", "meine sechs müden Kühe", "meine sechs müden Kühe", "meinen sechs müden Kühen"),
        # weak masculine nouns
        ("the boy", "der Junge", "den Jungen", "dem Jungen"),
        ("a poor student", "ein armer Student", "einen armen Studenten", "einem armen Studenten"),
        ("the students", "die Studenten", "die Studenten", "den Studenten"),
        # stems that change, and no ending at all
        ("an expensive mirror", "ein teurer Spiegel", "einen teuren Spiegel", "einem teuren Spiegel"),
        ("the dark kitchen", "die dunkle Küche", "die dunkle Küche", "der dunklen Küche"),
        ("a bird", "ein Vogel", "einen Vogel", "einem Vogel"),
        ("windows", "Fenster", "Fenster", "Fenstern"),
        ("the steaks", "die Steaks", "die Steaks", "den Steaks"),
    ],
)
def test_declension(english, nominative, accusative, dative):
    phrase = np(english)
    # "wie viele" is only ever subject or accusative object
    cases = ("nom", "acc") if phrase.det == "how many" else ("nom", "acc", "dat")
    assert [german_phrase(phrase, case) for case in cases] == [nominative, accusative, dative][: len(cases)]


TODAY, YESTERDAY, TOMORROW = ("today", "heute"), ("yesterday", "gestern"), ("tomorrow", "morgen")
EVENING, MONDAY = ("in the evening", "am Abend"), ("on Monday", "am Montag")
BECAUSE, ALTHOUGH, IF, THAT = ("because", "weil"), ("although", "obwohl"), ("if", "wenn"), ("that", "dass")


@pytest.mark.parametrize(
    ("sentence", "english", "german"),
    [
        (
            Sentence(clause("the old woman", "open", "the red door", negated=True)),
            "The old woman does not open the red door.",
            "Die alte Frau macht die rote Tür nicht auf.",
        ),
        (Sentence(clause("the men", "sleep")), "The men sleep.", "Die Männer schlafen."),
        (Sentence(clause("the man", "sleep")), "The man sleeps.", "Der Mann schläft."),
        (Sentence(clause(ME, "sleep")), "I sleep.", "Ich schlafe."),
        (
            Sentence(clause("a student", "read", "an old book", adverb=TODAY, fronted=True)),
            "Today a student reads an old book.",
            "Heute liest ein Student ein altes Buch.",
        ),
        (
            Sentence(clause("the doctor", "call", ME, adverb=TODAY)),
            "The doctor calls me today.",
            "Der Arzt ruft mich heute an.",
        ),
        (
            Sentence(clause("the teacher", "invite", "the boy", tense="past", adverb=YESTERDAY, fronted=True)),
            "Yesterday the teacher invited the boy.",
            "Gestern hat der Lehrer den Jungen eingeladen.",
        ),
        (
            Sentence(clause(SHE, "buy", "an umbrella", tense="past")),
            "She bought an umbrella.",
            "Sie hat einen Regenschirm gekauft.",
        ),
        (
            Sentence(clause("my brother", "drive to", "the city", tense="past", adverb=MONDAY)),
            "My brother drove to the city on Monday.",
            "Mein Bruder ist am Montag zur Stadt gefahren.",
        ),
        (
            Sentence(clause(THEY, "get up", tense="past", negated=True)),
            "They did not get up.",
            "Sie sind nicht aufgestanden.",
        ),
        (
            Sentence(clause("the woman", "give", "the book", "the child")),
            "The woman gives the book to the child.",
            "Die Frau gibt dem Kind das Buch.",
        ),
        (
            Sentence(clause("the woman", "give", "the book", "the child", negated=True)),
            "The woman does not give the book to the child.",
            "Die Frau gibt dem Kind das Buch nicht.",
        ),
        (
            Sentence(clause("the woman", "give", THEY, "the child", tense="past", adverb=YESTERDAY)),
            "The woman gave them to the child yesterday.",
            "Die Frau hat sie gestern dem Kind gegeben.",
        ),
        (
            Sentence(clause("the girls", "show", "two pictures", ME, adverb=EVENING)),
            "The girls show two pictures to me in the evening.",
            "Die Mädchen zeigen mir am Abend zwei Bilder.",
        ),
        (Sentence(clause(WE, "bring", THEY, HE)), "We bring them to him.", "Wir bringen sie ihm."),
        (
            Sentence(clause("the queen", "wear", "any black hat", negated=True)),
            "The queen does not wear a black hat.",
            "Die Königin trägt keinen schwarzen Hut.",
        ),
        (
            Sentence(clause(WE, "eat", "any bananas", tense="past", negated=True)),
            "We did not eat any bananas.",
            "Wir haben keine Bananen gegessen.",
        ),
        (Sentence(clause("no boy", "sing")), "No boy sings.", "Kein Junge singt."),
        (
            Sentence(clause(HE, "help", "the children", negated=True)),
            "He does not help the children.",
            "Er hilft den Kindern nicht.",
        ),
        (
            Sentence(clause("the student", "listen to", "the teacher", adverb=TODAY)),
            "The student listens to the teacher today.",
            "Der Student hört heute dem Lehrer zu.",
        ),
        (
            Sentence(clause("the dog", "follow", HE, tense="past")),
            "The dog followed him.",
            "Der Hund ist ihm gefolgt.",
        ),
        (
            Sentence(clause("this car", "belong to", "our sister")),
            "This car belongs to our sister.",
            "Dieses Auto gehört unserer Schwester.",
        ),
        (
            Sentence(clause("the sister", "wait for", "the bus", negated=True)),
            "The sister does not wait for the bus.",
            "Die Schwester wartet nicht auf den Bus.",
        ),
        (
            Sentence(clause("the bed", "stand in", "the small house")),
            "The bed stands in the small house.",
            "Das Bett steht im kleinen Haus.",
        ),
        (
            Sentence(clause("a man", "go into", "the castle", tense="past")),
            "A man went into the castle.",
            "Ein Mann ist ins Schloss gegangen.",
        ),
        (
            Sentence(clause(ME, "dream of", "the horse", adverb=TODAY)),
            "I dream of the horse today.",
            "Ich träume heute vom Pferd.",
        ),
        (
            Sentence(
                clause("the twelve doctors", "drive to", "the hotel", tense="will", adverb=TOMORROW, fronted=True)
            ),
            "Tomorrow the twelve doctors will drive to the hotel.",
            "Morgen werden die zwölf Ärzte zum Hotel fahren.",
        ),
        (
            Sentence(clause("the boy", "close", "the window", tense="want to", negated=True)),
            "The boy does not want to close the window.",
            "Der Junge will das Fenster nicht zumachen.",
        ),
        (
            Sentence(clause("the boy", "close", "the window", tense="must", negated=True)),
            "The boy must not close the window.",
            "Der Junge darf das Fenster nicht zumachen.",
        ),
        (Sentence(clause(ME, "stay at home", tense="must")), "I must stay at home.", "Ich muss zu Hause bleiben."),
        (
            Sentence(clause(WE, "visit", HE, tense="can", negated=True)),
            "We cannot visit him.",
            "Wir können ihn nicht besuchen.",
        ),
        (
            Sentence(clause("twenty-one children", "wash", "the dog", tense="should")),
            "Twenty-one children should wash the dog.",
            "Einundzwanzig Kinder sollten den Hund waschen.",
        ),
        (Sentence(is_("the pears", "delicious")), "The pears are delicious.", "Die Birnen sind lecker."),
        (Sentence(is_(ME, "tired", tense="past", negated=True)), "I was not tired.", "Ich war nicht müde."),
        (Sentence(clause(IT, "rain", tense="past")), "It rained.", "Es hat geregnet."),
        # questions
        (
            Sentence(clause("the man", "open", "the suitcase"), question=True),
            "Does the man open the suitcase?",
            "Macht der Mann den Koffer auf?",
        ),
        (
            Sentence(clause("the women", "work in", "the garden", tense="past"), question=True),
            "Did the women work in the garden?",
            "Haben die Frauen im Garten gearbeitet?",
        ),
        (Sentence(is_("the kitchen", "dark"), question=True), "Is the kitchen dark?", "Ist die Küche dunkel?"),
        (
            Sentence(clause(WHO, "meet", "my teacher", tense="past"), question=True),
            "Who met my teacher?",
            "Wer hat meinen Lehrer getroffen?",
        ),
        (Sentence(clause(HE, "eat", WHAT), question=True), "What does he eat?", "Was isst er?"),
        (
            Sentence(clause("the girl", "find", "which coat", tense="past"), question=True),
            "Which coat did the girl find?",
            "Welchen Mantel hat das Mädchen gefunden?",
        ),
        (
            Sentence(clause("how many cats", "see", "the bird"), question=True),
            "How many cats see the bird?",
            "Wie viele Katzen sehen den Vogel?",
        ),
        (
            Sentence(
                clause("the child", "wake up", adverb=("why", "warum"), fronted=True, negated=True), question=True
            ),
            "Why does the child not wake up?",
            "Warum wacht das Kind nicht auf?",
        ),
        # subordinate clauses
        (
            Sentence(clause("the man", "stay at home"), False, IF, clause(IT, "rain"), True),
            "If it rains, the man stays at home.",
            "Wenn es regnet, bleibt der Mann zu Hause.",
        ),
        (
            Sentence(clause("the man", "stay at home"), False, BECAUSE, is_(HE, "sick")),
            "The man stays at home because he is sick.",
            "Der Mann bleibt zu Hause, weil er krank ist.",
        ),
        (
            Sentence(
                clause("the cat", "sleep", tense="past"), False, ALTHOUGH, clause("a dog", "look at", HE, tense="past")
            ),
            "The cat slept, although a dog looked at him.",
            "Die Katze hat geschlafen, obwohl ein Hund ihn angesehen hat.",
        ),
        (
            Sentence(clause(SHE, "know", frame="dass"), False, THAT, clause("the boy", "open", "the door")),
            "She knows that the boy opens the door.",
            "Sie weiß, dass der Junge die Tür aufmacht.",
        ),
        (
            Sentence(
                clause("the teacher", "think", negated=True),
                False,
                THAT,
                clause(WE, "call", "the doctor", tense="can", adverb=TOMORROW),
            ),
            "The teacher does not think that we can call the doctor tomorrow.",
            "Der Lehrer denkt nicht, dass wir morgen den Arzt anrufen können.",
        ),
    ],
)
def test_sentence(sentence, english, german):
    assert realise(sentence) == (english, german)


# ------------------------------------------------------------------------------------------------------ the corpus
@pytest.fixture(scope="module")
def splits():
    return corpus()


def test_default_sizes(splits):
    assert {split: len(pairs) for split, pairs in splits.items()} == {"train": 25_000, "dev": 500, "test": 500}


def test_no_sentence_twice(splits):
    english = [en for pairs in splits.values() for en, _ in pairs]
    assert len(english) == len(set(english))


def test_sentences_are_text(splits):
    for pair in [pair for pairs in splits.values() for pair in pairs]:
        assert 3 <= len(pair[0].split()) <= 16
        for text in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüßA-ZÄÖÜ, -]*[a-zäöüß][.?]", text), text
            assert " ," not in text and "  " not in text, text
        assert pair[0][-1] == pair[1][-1]
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", pair[0].lower()), pair[0]


def test_who_is_a_person(splits):
    who = [en for en, _ in splits["train"] if en.startswith("Who ")]
    assert len(who) > 100
    assert not [en for en in who if re.match(r"Who (stand|stood|belong|(is|was) (not )?(red|new|heavy|fresh))", en)]


def test_one_german_sentence_for_an_english_one():
    rng, german = random.Random(7), dict[str, str]()
    for number in range(20_000):
        en, de = translate_pair(rng, "test" if number % 4 == 0 else "train")
        assert german.setdefault(en, de) == de
    assert len(set(german.values())) > 0.97 * len(german)  # and hardly any German sentence for two English ones


def test_no_two_forms_of_verbs_look_alike():
    german = dict[str, str]()
    subjects = [ME, HE, SHE, WE, THEY, np("the horse"), np("the horses")]
    for verb, tense, subject in product(VERBS, ["present", "past", *MODALS], subjects):
        if (tense in MODALS and verb.en == "be") or (tense == "past" and not verb.en_past):
            continue
        for negated, question in product([False, True], [False, True]):
            obj = Phrase(verb.objects[0]) if verb.objects else NONE
            main = Clause(subject, verb, tense, negated, obj, predicate=adj("old"))
            en, de = realise(Sentence(main, question))
            assert german.setdefault(en, de) == de


def test_seed_decides():
    sizes = {"train": 60, "dev": 20, "test": 20}
    assert corpus(**sizes, seed=3) == corpus(**sizes, seed=3)
    other = corpus(**sizes, seed=4)
    for split, pairs in corpus(**sizes, seed=3).items():
        assert len(set(pairs) & set(other[split])) < len(pairs) / 4


def test_size_of_train_leaves_dev_and_test_alone():
    small, large = corpus(train=10, dev=30, test=30), corpus(train=500, dev=30, test=30)
    assert (small["dev"], small["test"]) == (large["dev"], large["test"])
    assert small["train"] == large["train"][:10]


def test_same_bytes_on_every_python():
    # Changes with the grammar, and must not change with the version of Python.
    text = "\n".join(f"{en}\t{de}" for pairs in corpus(train=200, dev=20, test=20).values() for en, de in pairs)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "7b6f37a5a2dccf772aacf1caa6be2e25a194d07a0c25ff9f6656d733c86e1132"
    )


def _any(words):
    return "(?:" + "|".join(sorted(map(re.escape, words), key=len, reverse=True)) + ")"


def _forms(verb):
    first, space, rest = verb.en.partition(" ")
    return filter(None, (verb.en, verb.en_past, first + "s" + space + rest, first + "es" + space + rest))


# Every form of a word with its kind and its place in its table.
NOUN_FORMS = {form: noun.index for noun in NOUNS for form in (noun.en, PLURALS.get(noun.en, noun.en + "s"))}
ADJECTIVE_FORMS = {adjective.en: ("adjective", adjective.index) for adjective in ADJECTIVES}
VERB_FORMS = {form: ("verb", verb.index) for verb in VERBS if verb.objects for form in _forms(verb)}
A_NOUN, AN_ADJECTIVE, A_VERB = _any(NOUN_FORMS), _any(ADJECTIVE_FORMS), _any(VERB_FORMS)
BEFORE_NOUN = rf"(?:(?:the|an?|this|these|my|our|no|any) )?(?:{_any(CARDINALS)} )?(?:{AN_ADJECTIVE} )?"
PATTERNS = [
    (ADJECTIVE_FORMS, rf"\b(?P<word>{AN_ADJECTIVE}) (?P<noun>{A_NOUN})\b"),
    (ADJECTIVE_FORMS, rf"\b(?P<noun>{A_NOUN}) (?:(?:is|are|was|were) )?(?:not )?(?P<word>{AN_ADJECTIVE})\b"),
    (VERB_FORMS, rf"\b(?P<word>{A_VERB}) {BEFORE_NOUN}(?P<noun>{A_NOUN})\b"),
    (
        VERB_FORMS,
        rf"^(?:which|how many) (?:{AN_ADJECTIVE} )?(?P<noun>{A_NOUN}) (?:do|does|did|can|will|must|should) "
        rf"(?:{BEFORE_NOUN}{A_NOUN}|i|we|he|she|they) (?:want to )?(?P<word>{A_VERB})\b",
    ),
]


def word_pairs(english):
    """The (adjective, noun) and (verb, object noun) pairs of a sentence, read off it: {((kind, place), place)}."""
    matches = [(forms, match) for forms, pattern in PATTERNS for match in re.finditer(pattern, english.lower())]
    return {(forms[match["word"]], NOUN_FORMS[match["noun"]]) for forms, match in matches}


def test_word_pairs_are_read_off_the_text():
    tables: dict[str, list] = {"adjective": ADJECTIVES, "verb": VERBS}

    def named(english):
        return {(tables[kind][place].en, NOUNS[noun].en) for (kind, place), noun in word_pairs(english)}

    assert named("The old man gave two red hats to the boy.") == {("old", "man"), ("red", "hat"), ("give", "hat")}
    assert named("Is the door not green?") == {("green", "door")}
    assert named("Which red coat does my sister want to wear today?") == {("red", "coat"), ("wear", "coat")}
    assert named("Which man opens the door, although it is cold?") == {("open", "door")}
    assert named("If the cats were hungry, she washes them.") == {("hungry", "cat")}


def test_held_out_pairs(splits):
    def held_out(english):
        return [place for (_, place), noun in word_pairs(english) if (place + noun) % 7 == 0]

    for split in ("train", "dev"):
        assert not any(held_out(en) for en, _ in splits[split])
    assert all(held_out(en) for en, _ in splits["test"])


def test_every_test_sentence_has_a_pair_never_seen_in_train(splits):
    seen = {pair for split in ("train", "dev") for en, _ in splits[split] for pair in word_pairs(en)}
    assert len(seen) > 800
    assert all(word_pairs(en) - seen for en, _ in splits["test"])


def test_every_word_of_test_is_in_train(splits):
    for side in (0, 1):
        train, test = (
            {word for pair in splits[split] for word in re.findall(r"[\w-]+", pair[side])}
            for split in ("train", "test")
        )
        assert test <= train


def test_words_are_frequent_in_train(splits):
    pairs = [pair for en, _ in splits["train"] for pair in word_pairs(en)]
    words, nouns = Counter(word for word, _ in pairs), Counter(noun for _, noun in pairs)
    assert min(nouns[noun.index] for noun in NOUNS) >= 50
    forms = {**VERB_FORMS, **ADJECTIVE_FORMS}
    del forms["cold"]  # said of the weather only
    assert min(words[word] for word in forms.values()) >= 50


def test_files(tmp_path):
    paths = write_corpus(tmp_path / "new" / "folder", train=30, dev=5, test=0, seed=2)
    splits = corpus(train=30, dev=5, test=0, seed=2)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "dev.de", "dev.en", "test.de", "test.en", "train.de", "train.en",
    ]  # fmt: skip
    for split, (en, de) in paths.items():
        assert (en.name, de.name) == (f"{split}.en", f"{split}.de")
        assert en.read_bytes().decode() == "".join(f"{pair[0]}\n" for pair in splits[split])
        assert de.read_bytes().decode() == "".join(f"{pair[1]}\n" for pair in splits[split])


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_corpus(tmp_path, train=5, dev=1, test=1, seed=0)
    before = (tmp_path / "train.en").read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_corpus(tmp_path, train=5, dev=1, test=1, seed=1)
    assert (tmp_path / "train.en").read_bytes() == before


@pytest.mark.parametrize("sizes", [{"train": -1}, {"dev": -2}, {"test": -3}])
def test_negative_count(sizes):
    with pytest.raises(
        ValueError, match=f"expected a count of at least 0 for {next(iter(sizes))}, got {next(iter(sizes.values()))}"
    ):
        corpus(**({"train": 0, "dev": 0, "test": 0} | sizes))


def test_more_sentences_than_there_are(monkeypatch):
    monkeypatch.setattr(toy_corpus, "translate_pair", lambda rng, split: (f"{split} {rng.randrange(3)}", ""))
    assert len(corpus(train=3, dev=0, test=0)["train"]) == 3
    with pytest.raises(ValueError, match="expected at most 3 distinct sentences for train, got 4"):
        corpus(train=4, dev=0, test=0)
