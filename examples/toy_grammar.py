"""The grammar that made the package's toy corpus: English-German sentence pairs, as many as you like.

    python -m examples.toy_grammar

writes the package's file again, `tf_transformer/data/toy_corpus.tsv.gz`: seed 1, the same text with every Python.

A sentence is drawn once, as a tree of neither language, and realised in both, so every English sentence has one German
translation. English simple past is German perfect; "you" and "her", which are ambiguous, do not occur.

Some word pairs are held out, of two kinds. One is an adjective with its noun ("the red door", "the door is red"). The
other is a verb with its object noun ("opens the red door", "waits for the bus"); in "gives the book to the boy" the
object is "book". A pair is held out if (place of the adjective or verb in its table + place of the noun) % 7 == 0. No
sentence of train or dev contains a held-out pair. Every sentence of test contains at least one, so it cannot be
translated from memory. The single words are all frequent in train.
"""

import gzip
import random
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

from tf_transformer.data import toy_corpus

# Nouns by group and kind: English, German, German plural, gender (w: masculine, weak).
NOUN_TABLE = {
    "being person child": "child Kind Kinder n, boy Junge Jungen w, girl Mädchen Mädchen n",
    "being person adult": """student Student Studenten w, woman Frau Frauen f, doctor Arzt Ärzte m, man Mann Männer m,
        sister Schwester Schwestern f, queen Königin Königinnen f, teacher Lehrer Lehrer m, brother Bruder Brüder m""",
    "being animal": "dog Hund Hunde m, cat Katze Katzen f, horse Pferd Pferde n, bird Vogel Vögel m, cow Kuh Kühe f",
    "solid opening": """window Fenster Fenster n, bottle Flasche Flaschen f, umbrella Regenschirm Regenschirme m,
        door Tür Türen f, suitcase Koffer Koffer m, gate Tor Tore n""",
    "food": "apple Apfel Äpfel m, banana Banane Bananen f, egg Ei Eier n, pear Birne Birnen f, steak Steak Steaks n",
    "goods text": "newspaper Zeitung Zeitungen f, novel Roman Romane m, book Buch Bücher n",
    "solid goods clothing": """jacket Jacke Jacken f, dress Kleid Kleider n, blouse Bluse Blusen f, shirt Hemd Hemden n,
        coat Mantel Mäntel m, hat Hut Hüte m""",
    "solid goods thing": """table Tisch Tische m, mirror Spiegel Spiegel m, picture Bild Bilder n, lamp Lampe Lampen f,
        bed Bett Betten n, clock Uhr Uhren f""",
    "solid goods vehicle": "car Auto Autos n, bus Bus Busse m, bicycle Fahrrad Fahrräder n",
    "place home": "hotel Hotel Hotels n, castle Schloss Schlösser n, house Haus Häuser n, city Stadt Städte f",
    "place": "kitchen Küche Küchen f, school Schule Schulen f, garden Garten Gärten m, cellar Keller Keller m",
}
PLURALS = {"man": "men", "woman": "women", "child": "children", "city": "cities", "bus": "buses", "dress": "dresses"}

# Adjectives: English, German, the groups and kinds of noun described.
ADJECTIVE_TABLE = """old alt adult animal solid text place, young jung being, poor arm person, rich reich adult,
small klein child animal solid text place, big groß animal opening thing vehicle food place, happy glücklich being,
friendly freundlich being, tired müde being, sick krank being, hungry hungrig being, new neu solid text, red rot solid,
blue blau solid, green grün solid, white weiß animal solid, black schwarz animal solid, dark dunkel weather place,
expensive teuer food goods, cheap billig food goods, beautiful schön animal clothing thing place, fresh frisch food,
delicious lecker food, dirty schmutzig solid, heavy schwer opening thing, modern modern vehicle home,
interesting interessant text place, cold kalt weather"""

# Verbs by the preposition and case of the object: English and its past ("-": not used), German infinitive with "|"
# after the particle, third person, participle ("*": perfect with "sein") / kinds of object / of subject, if not person.
VERB_TABLE = {
    "acc": """look_at looked_at an|sehen sieht angesehen/being clothing thing vehicle place/being,
        open opened auf|machen macht aufgemacht/opening, wash washed waschen wäscht gewaschen/animal clothing vehicle,
        invite invited ein|laden lädt eingeladen/person, visit visited besuchen besucht besucht/person place,
        buy bought kaufen kauft gekauft/food goods, love loved lieben liebt geliebt/being home,
        know knew kennen kennt gekannt/person place, close closed zu|machen macht zugemacht/opening,
        see saw sehen sieht gesehen/being vehicle place/being, sell sold verkaufen verkauft verkauft/animal food goods,
        wear wore tragen trägt getragen/clothing, repair repaired reparieren repariert repariert/opening thing vehicle,
        find found finden findet gefunden/being opening food goods/being, need needed brauchen braucht gebraucht/goods,
        call called an|rufen ruft angerufen/person, meet met treffen trifft getroffen/person,
        read - lesen liest gelesen/text, eat ate essen isst gegessen/food""",
    "dat": """thank thanked danken dankt gedankt/person, listen_to listened_to zu|hören hört zugehört/person,
        belong_to belonged_to gehören gehört gehört/person/animal goods home, help helped helfen hilft geholfen/being,
        answer answered antworten antwortet geantwortet/person, follow followed folgen folgt *gefolgt/being/being""",
    "dat acc": """bring brought bringen bringt gebracht/food text clothing, give gave geben gibt gegeben/food goods,
        show showed zeigen zeigt gezeigt/animal goods""",
    "auf acc": "wait_for waited_for warten wartet gewartet/person vehicle/being",
    "an acc": "think_of thought_of denken denkt gedacht/being home",
    "von dat": "dream_of dreamed_of träumen träumt geträumt/being food home",
    "mit dat": """play_with played_with spielen spielt gespielt/being/being,
        speak_with spoke_with sprechen spricht gesprochen/person""",
    "in acc": "go_into went_into gehen geht *gegangen/place",
    "in dat": """stand_in stood_in stehen steht gestanden/place/thing vehicle,
        live_in lived_in wohnen wohnt gewohnt/home, work_in worked_in arbeiten arbeitet gearbeitet/place""",
    "zu dat": "drive_to drove_to fahren fährt *gefahren/home",
    "": """stay_at_home stayed_at_home zu_Hause_|bleiben bleibt *zu_Hause_geblieben/, sing sang singen singt gesungen/,
        sleep slept schlafen schläft geschlafen//being, wake_up woke_up auf|wachen wacht *aufgewacht//being,
        arrive arrived an|kommen kommt *angekommen/, get_up got_up auf|stehen steht *aufgestanden/""",
    "state": """be was sein ist -//animal solid text food place, rain rained regnen regnet geregnet//,
        be was sein ist -//person, be was sein ist -//person, be was sein ist -//""",
    "dass": "think - denken denkt gedacht/, know - wissen weiß gewusst/, say - sagen sagt gesagt/",
}
STATIVE = ("love", "know", "need", "belong to", "stand in", "be", "rain", "snow")  # no modal, no adverb of time

FIRST, THIRD, PLURAL = range(3)  # in this order: the forms for I, for he, she and it, for the plural
HAVE, BE, WAS = ("habe", "hat", "haben"), ("bin", "ist", "sind"), ("war", "war", "waren")
MODALS = {"will": ("werde", "wird", "werden"), "can": ("kann", "kann", "können"), "want to": ("will", "will", "wollen")}
MODALS |= {"must": ("muss", "muss", "müssen"), "should": ("sollte", "sollte", "sollten")}
W_WORDS = [("why", "warum"), ("when", "wann"), ("where", "wo")]
TENSES = ("present",) * 6 + ("past",) * 4 + tuple(MODALS)
ADVERBS = {
    "present": [("today", "heute"), ("in the morning", "am Morgen"), ("in the evening", "am Abend")],
    "past": [("yesterday", "gestern"), ("last week", "letzte Woche"), ("on Monday", "am Montag")],
    "modal": [("today", "heute"), ("tomorrow", "morgen"), ("next week", "nächste Woche")],
}
FEW = [("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf"), ("six", "sechs"), ("seven", "sieben")]
FEW += [("eight", "acht"), ("nine", "neun"), ("ten", "zehn"), ("eleven", "elf"), ("twelve", "zwölf")]
TENS, UNITS = [("twenty", "zwanzig"), ("thirty", "dreißig")], [("one", "ein"), *FEW[:8]]
MANY = TENS + [(f"{ten}-{unit}", f"{unit_de}und{ten_de}") for ten, ten_de in TENS for unit, unit_de in UNITS]
DEFINITE = ("the",) * 5 + ("this", "my", "our")
DETERMINERS = DEFINITE + ("a",) * 3
STEMS = {"this": "dies", "which": "welch", "a": "ein", "no": "kein", "any": "kein", "my": "mein", "our": "unser"}
STEMS |= {"how many": "wie viele", "tired": "müd", "expensive": "teur", "dark": "dunkl"}
THE = {"er": "der", "e": "die", "es": "das", "en": "den", "em": "dem"}
STRONG = {"nom": ("er", "e", "es", "e"), "acc": ("en", "e", "es", "e"), "dat": ("em", "er", "em", "en")}
CONTRACTIONS = {"in dem": "im", "in das": "ins", "von dem": "vom", "zu dem": "zum", "zu der": "zur"}

Noun = namedtuple("Noun", "index kind en de de_plural gender")
Adjective = namedtuple("Adjective", "index en de kinds")
# `frame`: key of VERB_TABLE; `de`: present without the particle; `auxiliary`: of the perfect.
Verb = namedtuple("Verb", "index frame en en_past particle de participle auxiliary subjects objects")
Pronoun = namedtuple("Pronoun", "en en_object nom acc dat person")
# `det`: "the", "a" (none in the plural), "how many" or another key of STEMS; `number`: English and German numeral.
Phrase = namedtuple("Phrase", "noun det person adjective number", defaults=("the", THIRD, None, ("", "")))
NONE = Pronoun("", "", "", "", "", THIRD)
# `tense`: one of TENSES; `predicate`: the adjective after "be"; `adverb`: English and German.
Clause = namedtuple(
    "Clause",
    "subject verb tense negated object recipient predicate adverb fronted",
    defaults=("present", False, NONE, NONE, None, ("", ""), False),
)
Sentence = namedtuple("Sentence", "main question conjunction sub sub_first", defaults=(False, ("", ""), None, False))


def _rows(table: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    rows = ((key, row) for key, text in table.items() for row in text.split(","))
    return ((index, *row) for index, row in enumerate(rows))


def _verb(index: int, frame: str, row: str) -> Verb:
    words, objects, subjects, *_ = (row + "/person").split("/")
    en, past, infinitive, third, participle = (word.replace("_", " ") for word in words.split())
    particle, _, plural = infinitive.rpartition("|")
    forms = BE if en == "be" else (plural[:-1] if third.endswith("t") else third, third, plural)  # ich lese, ich weiß
    nouns = [[noun for noun in NOUNS if {*noun.kind.split()} & {*kinds.split()}] for kinds in (subjects, objects)]
    auxiliary = BE if participle.startswith("*") else HAVE
    return Verb(index, frame, en, past.strip("-"), particle, forms, participle.strip("*"), auxiliary, *nouns)


NOUNS = [Noun(index, kind, *row.split()) for index, kind, row in _rows(NOUN_TABLE)]
ADJECTIVES = [Adjective(index, *row.split(maxsplit=2)) for index, _, row in _rows({"": ADJECTIVE_TABLE})]
VERBS = [_verb(*row) for row in _rows(VERB_TABLE)]
PERSONS = [noun for noun in NOUNS if "person" in noun.kind]
ADJECTIVES_OF = {
    kind: [adj for adj in ADJECTIVES if {*kind.split()} & {*adj.kinds.split()}] for kind in (*NOUN_TABLE, "weather")
}
STATES, THAT_VERBS = ([verb for verb in VERBS if verb.frame == frame] for frame in ("state", "dass"))
ACTIONS = [verb for verb in VERBS if verb.frame not in ("state", "dass")]
ACTIONS += [verb for verb in ACTIONS if verb.subjects[0] not in PERSONS] * 3  # else things are subjects too seldom
ME, WE = Pronoun("I", "me", "ich", "mich", "mir", FIRST), Pronoun("we", "us", "wir", "uns", "uns", PLURAL)
HE, THEY = Pronoun("he", "him", "er", "ihn", "ihm", THIRD), Pronoun("they", "them", "sie", "sie", "ihnen", PLURAL)
SHE, IT = Pronoun("she", "", "sie", "", "", THIRD), Pronoun("it", "", "es", "", "", THIRD)
SUBJECTS = (ME, ME, ME, WE, HE, SHE, THEY)
WHO, WHAT = Pronoun("who", "", "wer", "", "", THIRD), Pronoun("", "what", "", "was", "", THIRD)


def _join(*words: str) -> str:
    return " ".join(filter(None, words))


def _asks(phrase: Phrase | Pronoun) -> bool:
    return phrase in (WHO, WHAT) or getattr(phrase, "det", "") in ("which", "how many")


def english_phrase(phrase: Phrase | Pronoun, is_object: bool = False) -> str:
    """A noun phrase or pronoun in English; only a pronoun tells object from subject."""
    if isinstance(phrase, Pronoun):
        return phrase.en_object if is_object else phrase.en
    noun, det, plural = phrase.noun.en, phrase.det, phrase.person == PLURAL
    adjective = phrase.adjective.en if phrase.adjective else ""
    words = _join(phrase.number[0], adjective, PLURALS.get(noun, noun + "s") if plural else noun)
    if plural:
        det = {"a": "", "this": "these"}.get(det, det)
    elif det in ("a", "any"):
        det = "an" if words[0] in "aeiou" else "a"
    return _join(det, words)


def german_phrase(phrase: Phrase | Pronoun, case: str) -> str:
    """A noun phrase or pronoun in German; case: "nom", "acc" or "dat"."""
    if isinstance(phrase, Pronoun):
        return getattr(phrase, case)
    noun, det, plural = phrase.noun, phrase.det, phrase.person == PLURAL
    gender = "plural" if plural else noun.gender.replace("w", "m")
    strong = STRONG[case][("m", "f", "n", "plural").index(gender)]
    weak = "en" if plural or case == "dat" or strong == "en" else "e"
    # "ein altes Haus", "alte Häuser": where the article has no ending, the adjective has the strong one.
    unmarked = gender + case in ("mnom", "nnom", "nacc") and det not in ("the", "this", "which")
    unmarked = unmarked or (plural and det in ("a", "how many"))
    stem = "" if plural and det == "a" else STEMS.get(det, "")
    article = THE[strong] if det == "the" else stem if unmarked else stem + strong
    ending = strong if unmarked else weak
    adjective = STEMS.get(phrase.adjective.en, phrase.adjective.de) + ending if phrase.adjective else ""
    form = noun.de_plural if plural or (noun.gender == "w" and case != "nom") else noun.de
    dative_n = "n" if plural and case == "dat" and form[-1] not in "ns" else ""
    return _join(article, phrase.number[1], adjective, form + dative_n)


def english_clause(clause: Clause, question: bool = False) -> str:
    """A clause in English, without capital and full stop."""
    verb, tense, person, aux = clause.verb, clause.tense, clause.subject.person, ""
    inverted = question and not _asks(clause.subject)
    words = "want to " + verb.en if tense == "want to" else verb.en
    if verb.en == "be":
        aux, words = (("was", "was", "were") if tense == "past" else ("am", "is", "are"))[person], clause.predicate.en
    elif tense in MODALS and tense != "want to":
        aux = tense
    elif inverted or clause.negated:
        aux = "did" if tense == "past" else "does" if person == THIRD else "do"
    elif tense == "past":
        words = verb.en_past
    elif person == THIRD:
        first, space, rest = words.partition(" ")
        words = first + ("es" if first.endswith(("s", "sh", "ch", "o")) else "s") + space + rest
    subject, obj = english_phrase(clause.subject), english_phrase(clause.object, is_object=True)
    recipient = _join("to", english_phrase(clause.recipient, is_object=True)) if clause.recipient != NONE else ""
    front, adverb = (clause.adverb[0], "") if clause.fronted else ("", clause.adverb[0])
    if _asks(clause.object):
        front, obj = obj, ""
    start = (aux, subject) if inverted else (subject, aux)
    words = _join(front, *start, "not" if clause.negated else "", words, obj, recipient, adverb)
    return words.replace("can not", "cannot")


def german_clause(clause: Clause, place: str = "second") -> str:
    """A clause in German, without capital and full stop; place of the finite verb: "first", "second" or "last"."""
    verb, tense, person = clause.verb, clause.tense, clause.subject.person
    preposition, _, case = verb.frame.rpartition(" ")
    if verb.en == "be":
        finite, rest = (WAS if tense == "past" else BE)[person], clause.predicate.de
    elif tense == "present":
        finite, rest = verb.de[person], verb.particle.strip()
    elif tense == "past":
        finite, rest = verb.auxiliary[person], verb.participle
    else:
        modal = ("darf", "darf", "dürfen") if tense == "must" and clause.negated else MODALS[tense]
        finite, rest = modal[person], verb.particle + verb.de[PLURAL]
    subject, recipient = german_phrase(clause.subject, "nom"), german_phrase(clause.recipient, "dat")
    obj = german_phrase(clause.object, case) if clause.object != NONE else ""
    negation = "nicht" if clause.negated and not obj.startswith("kein") else ""
    front, adverb = (clause.adverb[1], "") if clause.fronted else ("", clause.adverb[1])
    if _asks(clause.object):
        front, obj = obj, ""
    object_rank = 0 if isinstance(clause.object, Pronoun) else 3
    if preposition not in ("", "dat"):
        article, space, noun = obj.partition(" ")
        start = f"{preposition} {article}"
        object_rank, obj = 5, CONTRACTIONS.get(start, start) + space + noun
    # Pronouns (accusative, dative), adverb, noun phrases (dative, accusative), nicht, preposition.
    ranked = [(object_rank, obj), (0.5 if isinstance(clause.recipient, Pronoun) else 2, recipient)]
    middle = _join(*(text for _, text in sorted([*ranked, (1, adverb), (4, negation)])))
    if place == "last":
        end = verb.particle + finite if tense == "present" and verb.particle else _join(rest, finite)
        return _join(subject, middle, end)
    order = (finite, subject) if front or place == "first" else (subject, finite)
    return _join(front, *order, middle, rest)


def realise(sentence: Sentence) -> tuple[str, str]:
    """The English and the German text of a sentence."""
    main, question, (conjunction, conjunction_de), sub, sub_first = sentence
    verb_first = sub_first or (question and not (main.fronted or _asks(main.subject) or _asks(main.object)))
    en, de = english_clause(main, question), german_clause(main, "first" if verb_first else "second")
    if sub:
        en_sub, de_sub = f"{conjunction} {english_clause(sub)}", f"{conjunction_de} {german_clause(sub, 'last')}"
        comma = "," if conjunction == "although" else ""
        en, de = (f"{en_sub}, {en}", f"{de_sub}, {de}") if sub_first else (f"{en}{comma} {en_sub}", f"{de}, {de_sub}")
    mark = "?" if question else "."
    return en[0].upper() + en[1:] + mark, de[0].upper() + de[1:] + mark


def _nominal(
    rng: random.Random, nouns: Sequence[Noun], dets: Sequence[str], pronouns: Sequence[Pronoun] = (), bare: float = 0.6
) -> Phrase | Pronoun:
    if pronouns and rng.random() < 0.25:
        return rng.choice(pronouns)
    noun, det, number = rng.choice(nouns), rng.choice(dets), ("", "")
    if noun.en in ("man", "woman") and det in ("my", "our"):
        det = "this"  # "mein Mann" is my husband
    person = PLURAL if rng.random() < (0.15 if "place" in noun.kind else 0.35) else THIRD
    if person == PLURAL and rng.random() > {"a": bare, "the": 0.7, "my": 0.7}.get(det, 1):
        number = rng.choice(FEW if rng.random() < 0.6 else MANY)
    return Phrase(noun, det, person, rng.choice(ADJECTIVES_OF[noun.kind]) if rng.random() < 0.5 else None, number)


def _clause(rng: random.Random, tenses: Sequence[str] = TENSES, negations: float = 0.2, states: float = 0.15) -> Clause:
    tense, negated = rng.choice(tenses), rng.random() < negations
    verb = rng.choice(STATES if rng.random() < states else ACTIONS)
    while (tense == "past" and not verb.en_past) or (tense in MODALS and verb.en in STATIVE):
        verb = rng.choice(ACTIONS)
    dets = DEFINITE if negated else DETERMINERS
    # No "no man must", no "no man does not", no "does no man".
    no = () if negated or not negations or tense == "must" else ("no",)
    pronouns = SUBJECTS if verb.subjects and verb.subjects[0] in PERSONS else ()
    subject = _nominal(rng, verb.subjects, (*dets, *no), pronouns, bare=0) if verb.subjects else IT
    if verb.en == "be":
        kind = "weather" if subject == IT else "being person adult"
        if isinstance(subject, Phrase):
            kind, subject = subject.noun.kind, subject._replace(adjective=None)  # no "the red door is blue"
        return Clause(subject, verb, tense, negated, predicate=rng.choice(ADJECTIVES_OF[kind]))
    near, far = (ME, WE), (HE, THEY)  # no "I see me", no "he sees him"
    persons = far if subject in near else near if isinstance(subject, Pronoun) else near + far
    things = (THEY,) if verb.frame in ("acc", "dat acc") and rng.random() < 0.5 else ()
    kein = ("any",) * 4 if negated and verb.frame in ("acc", "dat", "dat acc") else ()
    objects, recipients = ([noun for noun in nouns if noun != subject[0]] for nouns in (verb.objects, PERSONS))
    obj = _nominal(rng, objects, dets + kein, persons if objects[0] in PERSONS else things) if objects else NONE
    recipient = _nominal(rng, recipients, dets, () if obj == THEY else persons) if verb.frame == "dat acc" else NONE
    clause = Clause(subject, verb, tense, negated, obj, recipient)
    if verb.en in STATIVE or rng.random() < 0.65:
        return clause
    return clause._replace(adverb=rng.choice(ADVERBS.get(tense, ADVERBS["modal"])), fronted=rng.random() < 0.5)


def _w_question(rng: random.Random) -> Sentence:
    clause = _clause(rng)._replace(fronted=False)
    verb, denied = clause.verb, clause.negated or getattr(clause.subject, "det", "") == "no"
    words = W_WORDS[: 1 if denied or verb.en in STATIVE else 3 if verb.frame == "acc" else 2]
    changes: list[dict[str, Any]] = [{"adverb": word, "fronted": True} for word in words]
    for field, pronoun in (("subject", WHO), ("object", WHAT))[: 2 if verb.frame in ("acc", "dat acc") else 1]:
        phrase = getattr(clause, field)
        if isinstance(phrase, Phrase) and not denied:
            which = phrase._replace(det="which", number=("", ""))
            changes += [{field: which}, {field: which._replace(det="how many", person=PLURAL)}]
            if phrase.noun in PERSONS if pronoun == WHO else "being" not in phrase.noun.kind:
                changes.append({field: pronoun})
    return Sentence(clause._replace(**rng.choice(changes)), question=True)


def _sentence(rng: random.Random) -> Sentence:
    kind, plain = rng.random(), {"adverb": ("", ""), "fronted": False}
    if kind < 0.5:
        return Sentence(_clause(rng))
    if kind < 0.6:
        return Sentence(_clause(rng, negations=0)._replace(fronted=False), question=True)
    if kind < 0.75:
        return _w_question(rng)
    if kind < 0.83:
        main = Clause(_nominal(rng, PERSONS, DEFINITE, SUBJECTS), rng.choice(THAT_VERBS), negated=rng.random() < 0.2)
        sub = _clause(rng)._replace(fronted=False)
        # "she says that he sleeps today": when does she say so?
        return Sentence(main, False, ("that", "dass"), sub._replace(**plain) if sub.tense == "present" else sub)
    conjunction = rng.choice((("because", "weil"), ("although", "obwohl"), ("if", "wenn")))
    past = conjunction[0] != "if" and rng.random() < 0.4
    main = _clause(rng, ("past",) if past else ("present", *MODALS), states=0)._replace(**plain)
    sub = _clause(rng, ("past",) if past else ("present",), states=0.7)._replace(**plain)
    return Sentence(main, False, conjunction, sub, sub_first=rng.random() < 0.4)


def _is_held_out(sentence: Sentence) -> bool:
    for clause in filter(None, (sentence.main, sentence.sub)):
        for phrase in (clause.subject, clause.object, clause.recipient):
            if isinstance(phrase, Phrase):
                words = (phrase.adjective, clause.predicate, clause.verb if phrase is clause.object else None)
                if any(word and (word.index + phrase.noun.index) % 7 == 0 for word in words):
                    return True
    return False


def translate_pair(rng: random.Random, split: str = "train") -> tuple[str, str]:
    """A random (English, German) pair of 3 to 16 words; with held-out word pairs if and only if split is "test"."""
    while True:
        sentence = _sentence(rng)
        if _is_held_out(sentence) == (split == "test"):
            en, de = realise(sentence)
            if 3 <= len(en.split()) <= 16:
                return en, de


def corpus(train: int = 25_000, dev: int = 500, test: int = 500, seed: int = 1) -> dict[str, list[tuple[str, str]]]:
    """Lists of (English, German) pairs, {"train": [...], "dev": [...], "test": [...]}, no sentence twice.

    The pairs depend on the seed alone; dev and test do not depend on the size of train.
    """
    pairs: dict[str, dict[str, str]] = {"train": {}, "dev": {}, "test": {}}
    for split, size in (("test", test), ("dev", dev), ("train", train)):
        rng = random.Random(f"{seed} {split}")
        while len(pairs[split]) < size:
            en, de = translate_pair(rng, split)
            if not any(en in other for other in pairs.values()):
                pairs[split][en] = de
    return {split: list(found.items()) for split, found in pairs.items()}


def main() -> None:
    """Write the file of the package."""
    text = "".join(f"{en}\t{de}\n" for pairs in corpus().values() for en, de in pairs)
    toy_corpus.FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
