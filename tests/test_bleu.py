"""Scores against cases worked by hand."""

import math

import pytest

from tf_transformer import bleu

# 5 of 6 tokens, 3 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples; as long as the reference.
#   a b c d x f
#   a b c d e f
BY_HAND = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)


def test_bleu():
    score = bleu.bleu(["a b c d x f"], ["a b c d e f"])
    assert score.value == pytest.approx(BY_HAND)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_bleu_is_shortened_for_brevity():
    # All n-grams are right, four tokens instead of six.
    assert bleu.bleu(["a b c d"], ["a b c d e f"]).value == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_compounds_count_as_their_parts():
    # 'rot-grünes Haus .' is 'rot ##AT##-##AT## grünes Haus .' on both sides: the parts that agree count.
    #   ein rot ##AT##-##AT## blaues Haus .    5 of 6, 3 of 5 (ein-rot, rot-hyphen, Haus-.), 1 of 4; 0 of 3
    #   ein rot ##AT##-##AT## grünes Haus .
    # sacreBLEU's exponential smoothing puts 1 / (2 * 3) for the first zero.
    score = bleu.paper_bleu(["ein rot-blaues Haus."], ["ein rot-grünes Haus."])
    assert score.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / (2 * 3)) ** (1 / 4))
    assert "tok:13a+compounds-split" in score.signature
    # Unsplit it is one wrong token of four: 'ein rot-blaues Haus .'; 1 of 3 pairs; no triple, no quadruple.
    unsplit = bleu.bleu(["ein rot-blaues Haus."], ["ein rot-grünes Haus."])
    assert unsplit.value == pytest.approx(100 * (3 / 4 * 1 / 3 * 1 / (2 * 2) * 1 / (4 * 1)) ** (1 / 4))


def test_only_hyphens_inside_words_split():
    assert bleu.paper_bleu(["a - b c d"], ["a - b c d"]).value == pytest.approx(100)
    alike = bleu.paper_bleu(["a - b c d"], ["a-b c d"]).value
    assert alike < 100  # a dash between spaces is another token than a hyphen


def test_without_hyphens_the_flavours_agree():
    texts, references = ["a b c d x f.", "g h i j"], ["a b c d e f.", "g h i k"]
    assert bleu.paper_bleu(texts, references).value == pytest.approx(bleu.bleu(texts, references).value)


def test_chrf():
    assert bleu.chrf(["abc"], ["abc"]).value == pytest.approx(100)
    # Character 1-grams of 'ab' and 'ac' agree by one half, the 2-gram does not: F2 of (1/2 + 0) / 2 on both sides.
    assert bleu.chrf(["ab"], ["ac"]).value == pytest.approx(25)
    assert bleu.chrf(["ab"], ["ac"]).signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
