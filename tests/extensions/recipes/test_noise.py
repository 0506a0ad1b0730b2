"""Noise in sources: each pair's change depends only on it, in every shard, process and form of the corpus."""

import math

import numpy as np
import pytest
from test_sources import BAD, PAIRS, check_pairs, encoded_pairs, sources
from test_sources import text as text  # a fixture

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.data.corpus import Batching
from tf_transformer.extensions.recipes import NoisySource, TermSource
from tf_transformer.extensions.records.records import Records

SHARES = {"upper": 0.17, "title": 0.13, "lower": 0.11, "typos": 0.07}


def only(source, **shares):
    """Returns the pairs of a source with only some kinds of noise."""
    return list(NoisySource(source, **dict.fromkeys(SHARES, 0) | shares).pairs())


def both(source, target):
    return tt.sources.MemorySource([source], [target])


@pytest.fixture(scope="module")
def many():
    """A source with many pairs, in their order, and its pairs."""
    pairs = list(dict.fromkeys(toy_corpus.corpus(train=1_009, dev=0, test=0)["train"]))
    return tt.sources.MemorySource(*map(list, zip(*pairs, strict=True))), pairs


def test_shards_are_the_whole(text, tmp_path):
    """So it is for noise in every source, in joined ones, and for terms."""
    folder, pairs, _ = text
    of_text, packed, of_memory, custom = sources(folder, pairs)
    expected = encoded_pairs(NoisySource(of_memory, **SHARES).pairs())
    assert 0.3 < np.mean([pair != new for pair, new in zip(encoded_pairs(pairs), expected, strict=True)]) < 0.7
    for source in (of_text, packed, of_memory, custom):
        check_pairs(NoisySource(source, **SHARES), expected, BAD, tmp_path)
        assert NoisySource(source).place(1, 6) == source.place(1, 6)
    tagged = tt.sources.TaggedSource({"<2DE>": NoisySource(of_text, upper=1, title=0, lower=0, typos=0), "": packed})
    terms = TermSource(tagged, {"the": "Die", "old": "alte"})
    bad = {start + index for start in (0, PAIRS) for index in BAD}
    firsts = [start + index for start in (0, PAIRS) for index in range(0, PAIRS, 17)]
    check_pairs(terms, encoded_pairs(terms.pairs()), bad, tmp_path, firsts)
    assert terms.symbols == ["<2DE>", "<term>", "</term>"]


def test_bad_lines_are_those_of_the_source(text):
    folder, *_ = text
    strict = tt.sources.JoinedSource([tt.sources.TextSource(folder / "text.en", folder / "text.de")])
    with pytest.raises(tt.BadInput, match="text.en, line 14: expected a sentence in UTF-8, got an empty line"):
        list(NoisySource(strict).rows())
    long = "ŉ" * 8_000  # 16,000 bytes, and 24,000 in capitals
    assert only(both(long, "a"), upper=1) == [(long.encode(), b"a")]


def test_records_are_the_memory(text, tmp_path):
    folder, pairs, tokenizer = text
    source = NoisySource(next(sources(folder, pairs)), **SHARES)
    work = tt.Preparation(source, tmp_path)
    work.run(source.parts(17, tmp_path), tokenizer)
    memory = tt.Corpus(source, (["a"], ["b"])).batches(Batching(tokenizer, 512, 3)).blocks[0].read()
    assert by_line([memory]) == by_line(block.read() for block in Records(tmp_path).blocks())


def by_line(blocks):
    """Returns the ids of both sides by their line."""
    lines = {}
    for ids in blocks:
        batch = ids.batch(np.arange(len(ids)))
        rows = zip(ids.lines.tolist(), batch.source.tolist(), batch.target_out.tolist(), strict=True)
        lines |= {line: [list(filter(None, side)) for side in sides] for line, *sides in rows}
    return lines


def test_shares_and_seeds(many):
    """Each share is in its binomial interval. Another seed or order changes no other pair."""
    source, pairs = many
    noisy = NoisySource(source, **SHARES, seed=5)
    kinds = {name: only(source, **{name: 1}) for name in SHARES}
    new = list(noisy.pairs())
    for name, share in SHARES.items():
        if name != "typos":  # they depend on the pair's number
            hits = sum(one == other for one, other in zip(new, kinds[name], strict=True))
            assert abs(hits - share * len(pairs)) < 5 * math.sqrt(len(pairs) * share * (1 - share)), name
    changed = sum(one != other for one, other in zip(new, encoded_pairs(pairs), strict=True))
    assert abs(changed - 0.48 * len(pairs)) < 5 * math.sqrt(len(pairs) * 0.48 * 0.52)
    backwards = tt.sources.MemorySource(source.source[::-1], source.target[::-1])
    assert list(NoisySource(backwards, **SHARES, seed=5).pairs()) == new[::-1]
    assert new != list(NoisySource(source, **SHARES, seed=6).pairs())
    typos = ["Two doors open in the evening."] * 2
    assert only(both(*typos), typos=1) == [(b"Two doors open in the eevening.", typos[1].encode())]  # in every process


def test_a_run_that_resumes_has_the_same_pairs(many):
    """A run compares these values, and its stored ids have them as key."""
    source, _ = many
    contents = NoisySource(source, **SHARES).contents()
    changed = [SHARES | {name: 0.01} for name in SHARES] + [SHARES | {"seed": 2}]
    assert contents == NoisySource(source, **SHARES, seed=1).contents()
    assert all(NoisySource(source, **other).contents() != contents for other in changed)


TEXTS = [("Der Straße ǆ ŉ ΟΔΟΣ nach", "Улица, İstanbul"), ("東京 abc 1st", "“so” it's (fine) USA"), ("e\u0301a", "ﬁ")]


@pytest.mark.parametrize("pair", TEXTS)
def test_casing_is_that_of_python(pair):
    source = both(*pair)
    assert only(source, upper=1) == encoded_pairs([map(str.upper, pair)])
    assert only(source, lower=1) == encoded_pairs([(pair[0].lower(), pair[1])])
    title = [(new.decode(), side) for new, side in zip(*only(source, title=1), pair, strict=True)]
    for new, side in title:
        for word, old in zip(new.split(), side.split(), strict=True):
            start = next(index for index, letter in enumerate(old) if letter.isalnum())
            assert word == old[:start] + old[start].title() + old[start + 1 :]


def test_typos_change_few_letters(many):
    """One per ten words, in the source."""
    nltk = pytest.importorskip("nltk")
    source, _ = many
    texts = [" ".join(source.source[index : index + 3]) for index in range(0, 400, 4)] + ["東京都", "a", "?"]
    distances = []
    for line, (new, target) in zip(texts, only(tt.sources.MemorySource(texts, texts), typos=1), strict=True):
        distance = nltk.edit_distance(line, new.decode(), transpositions=True)
        assert distance <= math.ceil(len(line.split()) / 10) and target == line.encode()
        distances.append(distance)
    assert np.mean(distances) > 1


def test_tags_and_placeholders_do_not_change():
    kept = ["<2de>", "[it]", "%s", "{name}", "<b class='x'>", "&nbsp;", "https://example.org/a", "me@example.org"]
    tagged = tt.sources.TaggedSource({"[it]": both(" abcd ".join([*kept, "xy"]), "one {name} two")})
    for name in SHARES:
        ((source, target),) = only(tagged, **{name: 1})
        assert all(source.count(one.encode()) == 1 + (one == "[it]") for one in kept) and b"{name}" in target


def test_wrong_noise():
    source = both("a", "b")
    with pytest.raises(tt.BadInput, match="^upper, title, lower, typos: expected at most 1 in all, got 1.2$"):
        NoisySource(source, upper=0.5, title=0.5, lower=0.1, typos=0.1)
    with pytest.raises(tt.BadInput, match="^upper: expected a share from 0 to 1, got 1.5$"):
        NoisySource(source, upper=1.5)
    with pytest.raises(tt.BadInput, match="^source: expected a source of translation, got one of parsing$"):
        NoisySource(type("Trees", (tt.sources.MemorySource,), {"kind": "parsing"})(["a"], ["b"]))
