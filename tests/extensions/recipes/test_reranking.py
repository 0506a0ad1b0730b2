"""Choice among several outputs, against loops over sacreBLEU's scores and sums of log-probabilities."""

import json
import random

import numpy as np
import pytest
import sacrebleu

import tf_transformer as tt
from tf_transformer.extensions.recipes import closest, mbr, rerank, reverse_scores
from tf_transformer.inference.engine import Hypothesis, TranslationResult
from tf_transformer.tokenizers.tokenizer import EOS_ID

RESULT = TranslationResult("a", (Hypothesis("b", 0.0, -1.0, True, 1),), 1, False)


def chrf(hypotheses, references):
    pairs = zip(hypotheses, references, strict=True)
    return [sacrebleu.sentence_chrf(text, [reference]).score for text, reference in pairs]


@pytest.fixture(scope="module")
def rows():
    """Rows of texts with repetitions, empty ones and ones shorter than an n-gram."""
    draw = random.Random(5)
    words = ["rot", "rote", "Tür", "Türen", "a", "zwei", "."]
    texts = [[" ".join(draw.choices(words, k=draw.randrange(7))) for _ in range(11)] for _ in range(13)]
    return [*texts, ["", ""], ["a"], ["ab", "abc", "abcdefg"]]


def test_mbr_is_a_loop_over_all_pairs(rows):
    outputs = mbr(rows)
    for row, output in zip(rows, outputs, strict=True):
        risks = [np.mean(chrf([text] * len(row), row)) for text in row]
        assert risks[row.index(output)] == pytest.approx(max(risks), abs=1e-9)
    assert outputs == mbr(rows, chrf)
    assert mbr(rows, lambda texts, others: [-len(text) for text in texts]) == [min(row, key=len) for row in rows]


def test_the_closest_output_has_the_highest_score_against_its_reference(rows, tmp_path):
    references = [row[0][::-1] for row in rows]
    (tmp_path / "references").write_text("".join(f"{reference}\n" for reference in references))
    results = [TranslationResult("", tuple(Hypothesis(text, 0.0) for text in row), 1, False) for row in rows]
    written = [json.loads(result.written(".jsonl", n_best=True))["n_best"] for result in results]
    with open(tmp_path / "references") as file:
        outputs = closest(written, file)
    for row, output, reference in zip(rows, outputs, references, strict=True):
        scores = chrf(row, [reference] * len(row))
        assert scores[row.index(output)] == pytest.approx(max(scores), abs=1e-9)
    assert outputs == closest([result.hypotheses for result in results], references, chrf)
    with open(tmp_path / "references") as file:
        same = lambda texts, others: [text == other for text, other in zip(texts, others, strict=True)]  # noqa: E731
        assert closest([["other", reference] for reference in references], file, same) == references


def test_a_reverse_model_reranks_by_the_sum_of_both():
    names, log_probs, lengths, reverse = "abc", (-1.0, -2.0, -4.0), (2, 7, 3), [-9.0, -8.5, -3.0]
    outputs = (Hypothesis(*row, True, n) for *row, n in zip(names, (0.0,) * 3, log_probs, lengths, strict=True))
    results = [TranslationResult("x", tuple(outputs), 3, False)]
    for weight, length, order in ((0, 0, "abc"), (0.5, 0, "cab"), (1, 0, "cba"), (0.25, 1.0, "bca")):
        (result,) = rerank(results, [reverse], weight, length)
        expected = (1 - weight) * np.array(log_probs) + weight * np.array(reverse) + length * np.array(lengths)
        assert "".join(one.text for one in result.hypotheses) == order
        assert [one.score for one in result.hypotheses] == pytest.approx(sorted(expected, reverse=True))


def test_reverse_scores_are_those_of_the_model(translator, loaded):
    results = translator.replies(["Two doors.", "The old woman opens the red door."], 3)
    expected = []
    for result in results:
        target = [*translator.tokenizer.encode_target([result.source])[0], EOS_ID]
        for hypothesis in result.hypotheses:
            source = [*translator.tokenizer.encode([hypothesis.text])[0], EOS_ID]
            shifted = [*translator.tokenizer.start_ids(), *target[:-1]]
            logits = np.asarray(translator.model((np.array([source]), np.array([shifted])))[0], float)
            log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            expected.append(log_probs[np.arange(len(target)), target].sum())
    for reverse in (translator, loaded):
        scores = reverse_scores(results, reverse)
        assert [*map(len, scores)] == [3, 3]
        np.testing.assert_allclose(np.ravel(scores), expected, rtol=1e-4)
    assert rerank(results, translator, 0.3) == rerank(results, reverse_scores(results, translator), 0.3)


def test_reverse_scores_are_traced_once(translator):
    results = translator.replies(["Two doors.", "The old woman opens the red door."], 3)
    reverse_scores(results, translator)
    first = translator._functions["score"]
    reverse_scores(results[:1], translator)
    assert translator._functions["score"] is first and first[1].experimental_get_tracing_count() == 1


def test_bad_input(translator, lite):
    for function, message in (
        (lambda: mbr([["a"], []]), r"^hypotheses: expected a list of outputs for each text, at least one, got \[\]"),
        (lambda: mbr(["ab"]), "^hypotheses: expected a list of outputs .*, got 'ab'"),
        (lambda: mbr([["a"]], "BLEU"), "^metric: expected 'chrF' or a function, got 'BLEU'"),
        (lambda: mbr([["a", "b"]], lambda *_: [1.0]), r"^metric: .* returns 4 scores, got an array of shape \(1,\)"),
        (lambda: closest([["a"], ["b"]], ["a"]), "^references: expected as many as texts, 2, got 1"),
        (lambda: closest([["a"]], ["a", "b"]), "^references: expected as many as texts, 1, got 2"),
        (lambda: rerank([TranslationResult("a", (Hypothesis("b", 0.0),), 1, False)], [[0]]), "^results: expected .* n"),
        (lambda: mbr([["a", "b"]], lambda *_: [1, 2, np.nan, 1]), "^metric: expected scores, got NaN for 'b'. Return"),
        (lambda: closest([["a", "b"]], ["c"], lambda *_: [np.nan, 1]), "^metric: expected scores, got NaN for 'a'"),
        (lambda: rerank([RESULT], [[np.nan]]), "^reverse: expected a log-probability .* output, got nan for 'b'$"),
        (lambda: rerank([], [], 1.5), "^weight: expected 0 to 1, got 1.5"),
        (lambda: reverse_scores([], tt.load(lite)), "^reverse: expected a Translator or .*SavedModel, got LiteRT"),
        (lambda: reverse_scores([], translator, source_language="de"), "^source_language: expected none"),
    ):
        with pytest.raises(tt.BadInput, match=message):
            function()
