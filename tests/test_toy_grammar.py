"""The grammar of examples/: it makes the package's toy corpus, and no sentence of train or dev has a held-out pair."""

import re
from collections import Counter

import pytest

from examples import toy_grammar
from examples.toy_grammar import ADJECTIVES, FEW, MANY, NOUNS, PLURALS, VERBS
from tf_transformer.corpora import toy_corpus


@pytest.fixture(scope="module")
def splits():
    return toy_grammar.corpus()


def test_it_makes_the_file_of_the_package(splits, tmp_path, monkeypatch):
    assert splits == toy_corpus.corpus()
    monkeypatch.setattr(toy_corpus, "FILE", tmp_path / "corpus.tsv.gz")
    monkeypatch.setattr(toy_grammar, "corpus", lambda: splits)  # not again: it takes seconds
    toy_grammar.main()
    assert splits == toy_corpus.corpus()


def test_the_seed_decides_and_the_size_of_train_leaves_dev_and_test_alone():
    small, large, other = (toy_grammar.corpus(size, 20, 20, seed) for size, seed in ((10, 3), (60, 3), (60, 4)))
    assert small == large | {"train": large["train"][:10]}
    for split, pairs in large.items():
        assert len(set(pairs) & set(other[split])) < len(pairs) / 4


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("A small girl lives in the house.", "Ein kleines Mädchen wohnt im Haus."),
        ("He knew a student.", "Er hat einen Studenten gekannt."),
        ("We can wear this red coat today.", "Wir können heute diesen roten Mantel tragen."),
        ("The sick dog belongs to the five young brothers.", "Der kranke Hund gehört den fünf jungen Brüdern."),
        ("My twenty-six hungry sisters follow him.", "Meine sechsundzwanzig hungrigen Schwestern folgen ihm."),
        ("On Monday he did not wake up.", "Am Montag ist er nicht aufgewacht."),
        ("Today I will look at the modern bus.", "Heute werde ich den modernen Bus ansehen."),
        ("She does not give the egg to these teachers.", "Sie gibt diesen Lehrern das Ei nicht."),
        ("The girl must not follow a sister.", "Das Mädchen darf keiner Schwester folgen."),
        ("No boy stays at home.", "Kein Junge bleibt zu Hause."),
        ("Can a boy dream of the delicious egg?", "Kann ein Junge vom leckeren Ei träumen?"),
        ("When does she get up?", "Wann steht sie auf?"),
        ("What does this queen need?", "Was braucht diese Königin?"),
        ("How many sick dogs sleep?", "Wie viele kranke Hunde schlafen?"),
        (
            "Which girl followed the five friendly horses?",
            "Welches Mädchen ist den fünf freundlichen Pferden gefolgt?",
        ),
        ("Because the student was rich, he ate them.", "Weil der Student reich war, hat er sie gegessen."),
        (
            "The teacher sold a bird, although it was cold.",
            "Der Lehrer hat einen Vogel verkauft, obwohl es kalt war.",
        ),
        ("These men know that it is dark.", "Diese Männer wissen, dass es dunkel ist."),
    ],
)
def test_pairs_checked_by_hand(splits, english, german):
    assert [de for pairs in splits.values() for en, de in pairs if en == english] == [german]


def test_every_sentence_is_text_and_there_once(splits):
    english, german = zip(*(pair for pairs in splits.values() for pair in pairs), strict=True)
    assert len(set(english)) == len(english)
    assert len(set(german)) > 0.97 * len(german)  # hardly any German sentence for two English ones
    for pair in zip(english, german, strict=True):
        assert 3 <= len(pair[0].split()) <= 16
        for text in pair:
            assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüßA-ZÄÖÜ, -]*[a-zäöüß][.?]", text), text
            assert " ," not in text and "  " not in text, text
        assert pair[0][-1] == pair[1][-1]
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", pair[0].lower()), pair[0]


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
A_NUMBER = _any(dict(FEW + MANY))
BEFORE_NOUN = rf"(?:(?:the|an?|this|these|my|our|no|any) )?(?:{A_NUMBER} )?(?:{AN_ADJECTIVE} )?"
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
    def named(english):
        tables = {"adjective": ADJECTIVES, "verb": VERBS}
        return {(tables[kind][place].en, NOUNS[noun].en) for (kind, place), noun in word_pairs(english)}

    assert named("The old man gave two red hats to the boy.") == {("old", "man"), ("red", "hat"), ("give", "hat")}
    assert named("Is the door not green?") == {("green", "door")}
    assert named("Which red coat does my sister want to wear today?") == {("red", "coat"), ("wear", "coat")}


def test_held_out_pairs_are_in_every_sentence_of_test_and_nowhere_else(splits):
    def held_out(english):
        return [place for (_, place), noun in word_pairs(english) if (place + noun) % 7 == 0]

    for split in ("train", "dev"):
        assert not any(held_out(en) for en, _ in splits[split])
    assert all(held_out(en) for en, _ in splits["test"])
    seen = {pair for split in ("train", "dev") for en, _ in splits[split] for pair in word_pairs(en)}
    assert len(seen) > 800
    assert all(word_pairs(en) - seen for en, _ in splits["test"])


def test_the_words_of_test_are_frequent_in_train(splits):
    for side in (0, 1):
        train, test = (
            {word for pair in splits[split] for word in re.findall(r"[\w-]+", pair[side])}
            for split in ("train", "test")
        )
        assert test <= train
    pairs = [pair for en, _ in splits["train"] for pair in word_pairs(en)]
    words, nouns = Counter(word for word, _ in pairs), Counter(noun for _, noun in pairs)
    assert min(nouns[noun.index] for noun in NOUNS) >= 50
    forms = {**VERB_FORMS, **ADJECTIVE_FORMS}
    del forms["cold"]  # said of the weather only
    assert min(words[word] for word in forms.values()) >= 50
