"""Scores against cases worked by hand."""

import json
import math
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from tf_transformer.config import BadInput
from tf_transformer.evaluation import bleu
from tf_transformer.evaluation.bleu import Metric

# 5 of 6 tokens, 3 of 5 pairs, 2 of 4 triples, 1 of 3 quadruples. No brevity penalty.
#   a b c d x f
#   a b c d e f
BY_HAND = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)


def test_bleu():
    score = bleu.bleu(["a b c d x f"], ["a b c d e f"])
    assert score.value == pytest.approx(BY_HAND)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_compounds_count_as_their_parts():
    # 'rot-grünes Haus .' is 'rot ##AT##-##AT## grünes Haus .' on both sides: the parts that agree count.
    #   ein rot ##AT##-##AT## blaues Haus .    5 of 6, 3 of 5 (ein-rot, rot-hyphen, Haus-.), 1 of 4; 0 of 3
    #   ein rot ##AT##-##AT## grünes Haus .
    # sacreBLEU's exponential smoothing puts 1 / (2 * 3) for the first zero.
    score = bleu.paper_bleu(["ein rot-blaues Haus."], ["ein rot-grünes Haus."])
    assert score.value == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / (2 * 3)) ** (1 / 4))
    assert "tok:13a+compounds-split" in score.signature
    # Unsplit, 3 of 4 tokens of 'ein rot-blaues Haus .' match, 1 of 3 pairs, no triple and no quadruple.
    unsplit = bleu.bleu(["ein rot-blaues Haus."], ["ein rot-grünes Haus."])
    assert unsplit.value == pytest.approx(100 * (3 / 4 * 1 / 3 * 1 / (2 * 2) * 1 / (4 * 1)) ** (1 / 4))


def test_only_hyphens_inside_words_split():
    assert bleu.paper_bleu(["a - b c d"], ["a - b c d"]).value == pytest.approx(100)
    alike = bleu.paper_bleu(["a - b c d"], ["a-b c d"]).value
    assert alike < 100  # a dash between spaces is another token than a hyphen


def test_several_references_are_sacrebleu_s():
    texts = ["a b c d x f", "two doors open here"]
    lists = [["a b c d e f", "two doors open now"], ["a b c d x g", "doors open here"]]
    assert bleu.bleu(texts, lists).value == sacrebleu.corpus_bleu(texts, lists).score
    assert bleu.bleu(texts, lists).signature.startswith("nrefs:2|")
    assert bleu.chrf(texts, tuple(map(iter, lists))).value == sacrebleu.corpus_chrf(texts, lists).score
    scores = bleu.compare({"mine": texts, "its": lists[0]}, lists, 101)["BLEU 13a"]
    assert scores["mine"].value == sacrebleu.corpus_bleu(texts, lists).score and scores["its"].value == pytest.approx(
        100
    )


def test_metrics_by_name_are_sacrebleu_s(monkeypatch):
    texts, references = ["a b c d x f", "two doors open here"], ["a b c d e f", "two more doors open"]
    expected = {
        "BLEU": sacrebleu.corpus_bleu(texts, [references]),
        "chrF": sacrebleu.corpus_chrf(texts, [references]),
        "chrF++": sacrebleu.corpus_chrf(texts, [references], word_order=2),
        "TER": sacrebleu.corpus_ter(texts, [references]),
    }
    assert len({score.score for score in expected.values()}) == 4
    scores = bleu.compare({"": texts}, references, 2, ["chrF++", "TER"])
    for name, score in expected.items():
        assert bleu.score(texts, references, name).value == score.score
        assert Metric(name).score(texts, [], references) == score.score
        assert name == "BLEU" or scores[name][""].value == score.score
    with pytest.raises(BadInput, match="^metric: expected 'BLEU', 'chrF', .*, got 'ter'"):
        bleu.score(texts, references, "ter")


def test_spbleu_is_sacrebleu_s(tmp_path, monkeypatch):
    """Without its tokenizer and a network, it raises."""
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_: os.stat(tmp_path / "none"))
    with pytest.raises(BadInput, match=r"^spBLEU: sacreBLEU cannot download or read .*/flores200.*: .*No such file"):
        bleu.score(["a"], ["a"], "spBLEU")
    shutil.copy(
        Path(__file__).parents[1] / "m2m100/trained/sentencepiece.bpe.model", tmp_path / "models/flores200sacrebleuspm"
    )
    texts, references = ["Two old doors open."], ["Two doors open here."]
    score = bleu.score(texts, references, "spBLEU")
    assert score.value == sacrebleu.corpus_bleu(texts, [references], tokenize="flores200").score
    assert "tok:flores200" in score.signature


def test_the_best_rows_of_a_history():
    rows = [{"dev_own": 3.0}, {"step": 5}, {"dev_own": 7}, {"dev_own": 7.0}, {"dev_own": 2}]
    assert Metric("Own", max).best_first(rows) == [2, 3, 0, 4]
    assert Metric("Own", max, higher_is_better=False).best_first(rows) == [4, 0, 2, 3]
    assert Metric("BLEU").higher_is_better and not Metric("TER").higher_is_better
    for wrong in ([1], math.nan):
        with pytest.raises(BadInput, match="^Own: expected a finite number, got"):
            Metric("Own", lambda outputs, sources, references, wrong=wrong: wrong).score([], [], [])


def test_chrf():
    assert bleu.chrf(["abc"], ["abc"]).value == pytest.approx(100)
    # Character 1-grams of 'ab' and 'ac' agree by one half, the 2-gram does not: F2 of (1/2 + 0) / 2 on both sides.
    assert bleu.chrf(["ab"], ["ac"]).value == pytest.approx(25)
    assert bleu.chrf(["ab"], ["ac"]).signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")


def test_a_lone_surrogate_is_a_character():
    for score in (bleu.bleu, bleu.chrf):
        result = score(["a b c d \ud83d", "a b c d"], ["a b c d \ud83d", "a b c d"])
        assert result.value == pytest.approx(100)


def test_lower_cased():
    assert bleu.bleu(["A B c d e"], ["a b c d e"]).value < 100
    (score,) = bleu.compare({"": ["A B c d e"]}, ["a b c d e"], samples=2)["BLEU 13a lower-cased"].values()
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature


@pytest.mark.parametrize(
    ("text", "usual", "others"),
    [
        ("Er mag 寿司 sehr gern, und zwar jeden Tag.", "13a", {"intl", "13a lower-cased", "13a, compounds split"}),
        ("我 喜欢它。", "zh", {"char"}),
        ("나는 그것을 좋아한다", "char", set()),
        ("แมวดำนอนบนเสื่อ Mat 3", "char", set()),
        ("ຂ້ອຍມັກໝາ", "char", set()),
        ("ဘုရားကျောင်း", "char", set()),
        ("ខ្ញុំ ស្រលាញ់ ឆ្កែ", "char", set()),
        ("Das Wort สวัสดีครับ heißt Guten Tag.", "13a", {"intl", "13a lower-cased", "13a, compounds split"}),
    ],
)
def test_scripts_without_spaces_are_tokenized_as_they_need(text, usual, others):
    assert set(bleu.metrics([text])) == {"chrF", *(f"BLEU {name}" for name in {usual} | others)}
    assert f"tok:{usual}|" in bleu.bleu([text], [text]).signature


def test_texts_come_as_a_translator_takes_them(tmp_path):
    """In arrays, generators, and open files, whose lines have their ends."""
    texts, references = ["a b c d x f", "two doors open here"], ["a b c d e f", "two doors open now"]
    files = [tmp_path / "texts", tmp_path / "references"]
    for file, lines in zip(files, (texts, references), strict=True):
        file.write_bytes("\r\n".join(lines).encode() + b"\n")
    for function in (bleu.bleu, bleu.paper_bleu, bleu.chrf):
        expected = function(texts, references)
        for kind in (np.array, iter, tuple, dict.fromkeys):
            assert function(kind(texts), kind(references)) == expected
        with open(files[0]) as source, open(files[1], newline="") as target:
            assert function(source, target) == expected
    systems = {"mine": np.array(texts), "its": iter(references)}
    assert bleu.compare(systems, np.array(references), 101) == bleu.compare(
        {"mine": texts, "its": references}, references, 101
    )


def test_texts_of_another_number_or_type_raise_bad_input():
    for texts, references, message in (
        (["a"] * 3, ["a"] * 2, "expected as many translations as references, .*; got 3 translations and 2 references"),
        ([], [], "and at least one; got 0 translations and 0 references"),
        ("ab", ["a", "b"], "translations: expected a list of strings, got one string"),
        (["a", "b"], ["a", None], "references: expected strings, got NoneType at index 1"),
        (b"ab", ["a", "b"], "translations: expected a list of strings, got one string"),
        (["a"], [["a"], ["b", "c"]], "got 1 translations and 2 references"),
        (["a"], None, "references: expected a list.*, got None"),
        (["a"], np.array("a"), "references: expected a list.*, got .*array"),
        (np.array([["a"]]), ["a"], "translations: expected strings, got ndarray at index 0"),
    ):
        for function in (bleu.bleu, bleu.paper_bleu, bleu.chrf, lambda texts, other: bleu.compare({"": texts}, other)):
            with pytest.raises(BadInput, match=message):
                function(texts, references)


def test_japanese_is_not_tokenized_as_chinese():
    assert set(bleu.metrics(["彼は寿司が好きだ。"])) - {"BLEU ja-mecab"} == {"BLEU char", "chrF"}


def test_the_interval_and_the_chance_are_those_of_the_bootstrap():
    """For sentences of one word, chrF is nearly the share of correct ones, whose error is known."""
    r = random.Random(3)
    words = ["".join(r.choices("abcdefgh", k=5)) for _ in range(401)]

    def right(share):
        return [word if r.random() < share else "zzzzz" for word in words]

    scores = bleu.compare({"good": right(0.8), "same": right(0.8), "bad": right(0.6)}, words)["chrF"]
    assert scores["good"].value == pytest.approx(80, abs=5)
    assert scores["good"].interval == pytest.approx(100 * 1.96 * math.sqrt(0.8 * 0.2 / 401), rel=0.15)
    assert scores["good"].p_value is None and scores["bad"].p_value < 0.01 < 0.1 < scores["same"].p_value


def test_equal_systems_do_not_differ():
    """By every metric: equal texts, equal tokens, and equal scores of other texts."""
    r = random.Random(4)
    first = [" ".join(r.choices(["dog", "cat", "tree", "house"], k=8)) for _ in range(20)]
    references = [text.replace("dog", "bird") for text in first]
    swapped = [references[0], *first[1:-1], first[-1]]
    systems = {"first": first, "equal": list(first), "spaces": [f" {text.replace(' ', '  ')} " for text in first]}
    scores = bleu.compare(systems | {"better": swapped}, references, samples=50, more=["TER", "chrF++"])
    for metric, by_system in scores.items():
        assert by_system["first"].p_value is None and by_system["equal"].p_value == 1.0, metric
        assert by_system["better"].p_value < 1.0, metric
    assert scores["BLEU 13a"]["spaces"].p_value == 1.0
    assert json.loads(json.dumps(scores))["chrF"]["equal"] == [*scores["chrF"]["equal"]]  # Python's numbers
    halves = {"left": ["a b c d", "x x x x"], "right": ["x x x x", "a b c d"]}
    assert bleu.compare(halves, ["a b c d", "a b c d"], samples=50)["chrF"]["right"].p_value == 1.0
