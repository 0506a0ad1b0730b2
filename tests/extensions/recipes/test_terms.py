"""Terms in sources and texts: the same annotations, only of terms on both sides, and one-line errors."""

import gzip
import math
import re

import pytest

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.extensions.recipes import TermSource, annotate, read_glossary

TERMS = {"door": "Tür", "old": "alte", "book": "Buch", "the": "Die"}


def test_terms_of_a_source():
    """Each is on both sides, and replaced as `annotate` does, in a share of the pairs."""
    pairs = list(dict.fromkeys(toy_corpus.corpus(train=2_003, dev=0, test=0)["train"]))
    source = tt.sources.MemorySource(*map(list, zip(*pairs, strict=True)))
    expected = []
    for text, target in pairs:
        matches = {term for term in TERMS if TERMS[term] in re.findall(r"\w+", target)}
        one = "|".join(sorted(matches)) or "(?!)"
        written = re.sub(rf"(?i)\b(?:{one})\b", lambda m: f"<term> {TERMS[m[0].lower()]} </term>", text)
        if len(matches) == len(TERMS):
            assert written == annotate(text, TERMS)
        expected.append((written.encode(), target.encode()))
    assert list(TermSource(source, TERMS, share=1).pairs()) == expected
    unchanged = [tuple(side.encode() for side in pair) for pair in pairs]
    assert list(TermSource(source, TERMS, share=0).pairs()) == unchanged
    has_term = [new != old for new, old in zip(expected, unchanged, strict=True)]
    half = list(TermSource(source, TERMS, share=0.3).pairs())
    hits = sum(new != old for new, old in zip(half, unchanged, strict=True))
    assert abs(hits - 0.3 * sum(has_term)) < 5 * math.sqrt(0.21 * sum(has_term))
    assert all(new in (one, old) for new, one, old in zip(half, expected, unchanged, strict=True))
    assert TermSource(source, TERMS).contents() != TermSource(source, TERMS | {"a": "b"}).contents()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Power cable, CABLE. cables", "[Netzkabel], [Kabel]. cables"),
        ("power  cable power-cable", "[Netzkabel] power-[Kabel]"),
        ("我在東京都。東京", "我在[Präfektur Tokio]。[Tokio]"),
        ("कमी कम ปี2020", "कमी [wenig] [Jahr]2020"),
        ("STRASSE Straße cafe\u0301 cafe", "[road] [road] cafe\u0301 [Kneipe]"),
        ("C++ (new)? a.c abc .*", "[C+++]? [dot] abc [\\1 star]"),
        (
            "<b>cable</b> <a cable='1'> {cable} cable@example.org",
            "<b>[Kabel]</b> <a cable='1'> {cable} cable@example.org",
        ),
        ("<term> <term> Kabel cable </term> cable <term>", "<term> [Kabel cable] [Kabel] <term>"),
        ("", ""),
    ],
)
def test_the_longest_term_between_word_borders(text, expected):
    terms = {
        "cable": "Kabel",
        "power cable": "Netzkabel",
        "東京": "Tokio",
        "東京都": "Präfektur Tokio",
        "कम": "wenig",
        "ปี": "Jahr",
    }
    terms |= {"straße": "road", "cafe": "Kneipe", "c++ (new)": "C+++", "a.c": "dot", ".*": "\\1 star"}
    written = annotate(text, terms)
    assert written == re.sub(r"\[(.+?)\]", r"<term> \1 </term>", expected)
    assert annotate(written, terms) == written


def test_tags_are_no_terms():
    source = tt.sources.TaggedSource({"[cable]": tt.sources.MemorySource(["a cable"], ["ein Kabel"])})
    pairs = list(TermSource(source, {"cable": "Kabel"}, share=1).pairs())
    assert pairs == [(b"[cable] a <term> Kabel </term>", b"ein Kabel")]


def test_a_vocabulary_has_the_symbols():
    source = TermSource(tt.sources.MemorySource(["a door"] * 9, ["eine Tür"] * 9), TERMS, share=1)
    tokenizer = source.train_tokenizer(280, "bpe")
    assert {"<term>", "</term>"} <= set(tokenizer.tokens(tokenizer.encode(["a<term> Tür </term>"])[0]))
    with pytest.raises(tt.BadInput, match="a token for each tag of the sources, got none for <term>, </term>"):
        source.encoder(tt.Tokenizer.train_from_iterator(["a door", "eine Tür"], 270))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({}, "expected source terms and their target terms, got none"),
        ({"a": "b", "": "c"}, "expected printable text without <term> or </term>, got ''"),
        ({"a": " "}, "expected printable text .*, got ' '"),
        ({"a": "b\nc"}, r"expected printable text .*, got 'b\\nc'"),
        ({"a": "b\ud800"}, r"expected printable text .*, got 'b\\ud800'"),
        ({"a": "the </term>"}, "expected printable text .*, got 'the </term>'"),
        ({"a": [1]}, r"expected texts, got \[1\]"),
        ({"Cable": "Kabel", "cable": "Seil"}, "expected one target term of 'cable', got 'Kabel' and 'Seil'"),
        ([("a", "b")], "expected a dictionary, got .*"),
    ],
)
def test_hostile_glossaries(terms, message):
    with pytest.raises(tt.BadInput, match=f"^glossary: {message}$"):
        annotate("a", terms)


def test_glossaries_of_files(tmp_path):
    path = tmp_path / "terms.tsv.gz"
    path.write_bytes(gzip.compress("\ufeffcable\tKabel\r\npower cable\tNetzkabel\ncable\tKabel\n".encode()))
    assert read_glossary(path) == {"cable": "Kabel", "power cable": "Netzkabel"}
    lines = {b"cable": r"\['cable'\]", b"a\tb\tc": r"\['a', 'b', 'c'\]", b"": "an empty line", b"a\tc": r"\['a', 'c'\]"}
    for line, got in {**lines, b"\xff\ta": "the byte 0xff at column 1"}.items():
        (tmp_path / "terms.tsv").write_bytes(b"a\tb\n" + line + b"\n")
        expected = f"terms.tsv, line 2: expected a new source term, a tab and its target term, got {got}$"
        with pytest.raises(tt.BadInput, match=expected):
            read_glossary(tmp_path / "terms.tsv")
    with pytest.raises(FileNotFoundError):
        read_glossary(tmp_path / "none.tsv")
