"""The serving contract: outputs of each signature, by TensorFlow's C++ loader and in Python."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import hostile
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from conftest import TEXTS, random_model
from served import Served, merge

import tf_transformer as tt
from tf_transformer.decoding.search_options import options_of
from tf_transformer.serving.contract import CONTRACT, Export
from tf_transformer.serving.formats import formats
from tf_transformer.tokenizers.tokenizer import EOS_ID

TRANSLATIONS = {"translations", "scores", "log_probs", "lengths", "finished", "source_length", "truncated"}
DETAILS = {"tokens", "alignments", "token_scores", "source_tokens"}
REQUEST = options_of("request")
# Clients rely on these. Increment the number of the contract when you change an input or output.
SIGNATURES = {  # name → inputs, outputs
    "serving_default": ({"text"}, {"translation", "score", "truncated"}),
    "translate": ({"text", *REQUEST}, TRANSLATIONS),
    "translate_details": ({"text", *REQUEST}, DETAILS),
    "score": ({"source", "target"}, {"log_prob", "score", "length", "truncated"}),
    "tokenize": ({"text"}, {"tokens", "length"}),
    "detokenize": ({"tokens"}, {"text"}),
    "model_info": ({"key"}, {"value"}),
}
PROMISED = {  # contract → options of a request
    "1": {"beam_size", "length_penalty", "min_length", "no_repeat_ngram_size", "max_length"},
}


@pytest.fixture(scope="module")
def ending(translator):
    """Translator with short and long finished outputs, and unfinished ones."""
    model = random_model(translator.tokenizer.vocab_size, 7, 5.2, {})
    return tt.Translator(model, translator.tokenizer, **translator.options)


@pytest.fixture(scope="module")
def served_ending(ending, tmp_path_factory):
    path = tmp_path_factory.mktemp("ending") / "1"
    ending.save(path, completions=True)
    process = Served(path)
    yield process
    process.close()


def options(beam_size, length_penalty, max_length):
    """Returns all options of a request by row, with defaults of the table."""
    values = {name: [option.default] * len(beam_size) for name, option in REQUEST.items()}
    values |= {"beam_size": beam_size, "length_penalty": length_penalty, "max_length": max_length}
    return {name: np.array(value, REQUEST[name].dtype) for name, value in values.items()}


def same(result, expected):
    assert result.keys() == expected.keys()
    for name, value in expected.items():
        if value.dtype == np.float32:
            np.testing.assert_allclose(result[name], value, rtol=1e-4, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(result[name], value, err_msg=name)


def test_signatures_and_outputs(served):
    result = {name: (set(inputs), set(outputs)) for name, (inputs, outputs, _) in served.signatures.items()}
    assert result == SIGNATURES
    assert PROMISED[CONTRACT] == set(REQUEST)
    for inputs, outputs, _ in served.signatures.values():
        assert all(shape[0] is None and None not in shape[1:] for _, shape in [*inputs.values(), *outputs.values()])


def test_options_are_by_row(served):
    texts = TEXTS[:1] * 3 + TEXTS[6:8]
    request = options([1, 2, 99, 0, 4], [0.6, 0.0, -2.0, 0.6, 1.3], [9, 3, 5, 2, 999])
    for signature in ("translate", "translate_details"):
        together = served({"text": texts} | request, signature)
        for row, text in enumerate(texts):
            chosen = {name: value[row : row + 1] for name, value in request.items()}
            single = served({"text": [text]} | chosen, signature)
            same({name: value[row : row + 1] for name, value in together.items()}, single)
            if signature == "translate":
                used = single["scores"][0] > -1e8
                assert used.sum() <= np.clip(request["beam_size"][row], 1, 4)
                assert (single["lengths"][0] <= request["max_length"][row]).all()


def test_requests_that_the_server_merges(served):
    """Requests of one or more rows and different options, in batches padded to the allowed sizes."""
    requests = [
        {"text": np.array(TEXTS[:1], object)} | options([2], [0.6], [9]),
        {"text": np.array(TEXTS[1:4], object)} | options([3, 1, 4], [0.0, 0.6, 2.0], [7, 9, 5]),
        {"text": np.array(TEXTS[4:9], object)} | options([16, 3, 2, 1, 3], 5 * [1.0], [11, 3, 9, 30, 256]),
    ]
    for result, request in zip(merge(served, requests, "translate"), requests, strict=True):
        same(result, served(request, "translate"))
    plain = [{"text": request["text"]} for request in requests]
    for result, request in zip(merge(served, plain, "serving_default"), plain, strict=True):
        same(result, served(request))


def test_options_out_of_range_are_clipped(served):
    text = {"text": TEXTS[:1]}
    least, most = options([1], [0.0], [1]), options([16], [5.0], [256])
    same(served(text | options([-(2**31)], [-np.inf], [-5]), "translate"), served(text | least, "translate"))
    same(served(text | options([2**31 - 1], [np.inf], [2**31 - 1]), "translate"), served(text | most, "translate"))
    nothing = served(text | {"length_penalty": np.array([np.nan], np.float32)}, "translate")
    same(nothing, served(text, "translate"))  # NaN means the default


@pytest.mark.program
def test_defaults_are_the_translators(served, translator, loaded):
    result = served({"text": TEXTS}, "translate")
    same(served({"text": TEXTS} | options([3], [0.6], [256]), "translate"), result)
    python = loaded.loaded.translate(tf.constant(TEXTS))
    same({name: value.numpy() for name, value in python.items()}, result)
    for row, hypotheses in enumerate(translator.n_best(TEXTS, 4)):
        assert [text.decode() for text in result["translations"][row]][: len(hypotheses)] == [
            best.text for best in hypotheses
        ]
        np.testing.assert_allclose(
            result["scores"][row][: len(hypotheses)], [best.score for best in hypotheses], rtol=1e-4
        )
        assert (result["scores"][row][len(hypotheses) :] == -1e9).all()


@pytest.mark.parametrize(
    "names", [("served", "translator"), pytest.param(("served_ending", "ending"), marks=pytest.mark.program)]
)
def test_score_is_what_the_search_found(names, request):
    """Scores of the best outputs equal the sums of the search."""
    served, translator = map(request.getfixturevalue, names)
    result, details = served({"text": TEXTS}, "translate"), served({"text": TEXTS}, "translate_details")
    for row in np.flatnonzero(result["finished"][:, 0]):
        n = result["lengths"][row, 0]
        assert (details["token_scores"][row, 0, n:] == 0).all()
        end = result["log_probs"][row, 0] - details["token_scores"][row, 0].sum()  # EOS
        assert end < 1e-4
    texts = result["translations"][:, 0]
    ids = translator.tokenizer.tokenize(texts).to_list()
    scored = served({"source": TEXTS, "target": texts}, "score")
    compared = 0
    for row in np.flatnonzero(result["finished"][:, 0]):
        pieces = [piece.decode() for piece in translator.tokenizer.pieces(tf.constant([ids[row]], tf.int32)).numpy()[0]]
        if " ".join(pieces) == details["tokens"][row, 0].decode():  # the text tokenizes to the tokens of the search
            assert scored["log_prob"][row] == pytest.approx(result["log_probs"][row, 0], abs=1e-3)
            assert scored["score"][row] == pytest.approx(result["scores"][row, 0], abs=1e-3)
            assert scored["length"][row] == result["lengths"][row, 0]
            compared += 1
    assert compared or not result["finished"].any()


@pytest.mark.parametrize("text", ["a b " * 200_000, "ab" * 400_000, "\u72d7" * 300_000, " " * 900_000 + "a b"])
def test_tokenize_and_detokenize_read_a_part_of_a_huge_text(text, served, translator):
    """That with the first tokens, and the rows beside it whole."""
    output = served({"text": np.array([text, "Two doors."], object)}, "tokenize")
    ids = translator.tokenizer.encode([text])[0]
    begin = output["tokens"][0].decode().split(" ")[:-1]  # the last one may be cut
    assert begin == translator.tokenizer.tokens(ids)[: len(begin)] and len(begin) >= min(10_000, len(ids) - 1)
    is_long = len(" ".join(text.split()).encode()) > 640_064  # 64 bytes for each of 10,001 tokens
    assert (output["length"][0] < len(ids)) == is_long
    assert (
        output["tokens"][1]
        == " ".join(translator.tokenizer.tokens(translator.tokenizer.encode(["Two doors."])[0])).encode()
    )
    tokens = [" ".join(translator.tokenizer.tokens(ids[:300_000])), "a"]
    texts = served({"tokens": np.array(tokens, object)}, "detokenize")["text"]
    whole = translator.tokenizer.decode([ids])[0].encode()
    assert whole.startswith(texts[0]) and (len(texts[0]) > 20_000 or texts[0] == whole)


def test_a_score_has_truncated(served):
    short, long = "Two doors.", "door " * 3000
    result = served({"source": [short, long, short], "target": [short, short, long]}, "score")
    assert result["truncated"].tolist() == [False, True, True]
    assert result["length"][2] == 41


@pytest.mark.program
def test_eos_is_not_a_token(served_ending, ending):
    """`lengths` counts tokens, scores and alignments of finished and unfinished outputs."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=ending.tokenizer.model)
    source, length, _ = ending.source(tf.constant(TEXTS))
    searched, values = ending.detailed_search(source, length, n_best=4)
    result = [part.numpy() for part in searched]
    translated, details = (served_ending({"text": TEXTS}, name) for name in ("translate", "translate_details"))
    several = set()
    for row, n in np.ndindex(len(TEXTS), 4):
        ids, _, _, count, finished = (part[row, n] for part in result)
        ids = ids[:count].tolist()
        assert finished == (EOS_ID in ids)
        pieces = [processor.id_to_piece(id) for id in ids if id != EOS_ID]
        assert details["tokens"][row, n].decode().split() == pieces
        assert translated["lengths"][row, n] == np.count_nonzero(details["token_scores"][row, n]) == len(pieces)
        attended = values.attended[row, n, : len(pieces)].numpy()
        assert details["alignments"][row, n].decode().split() == [f"{s}-{t}" for t, s in enumerate(attended)]
        several.add((bool(finished), len(pieces)))
    assert len(several) > 6 and {finished for finished, _ in several} == {True, False}


def test_tokens_are_sentencepieces(served, translator):
    """SentencePiece in Python and the op in TensorFlow's C++ agree."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=translator.tokenizer.model)
    texts = [TEXTS[0], TEXTS[6], "é e\u0301 ﬁ ½ Ⅷ", "a\u3000b\u00a0c", "</s><s><pad>"]
    texts += ["ÀÉ " * 50, "x" * 999, "\uff11\u200b3"]
    result = served({"text": texts}, "tokenize")
    assert [tokens.decode().split(" ") for tokens in result["tokens"]] == processor.encode(texts, out_type=str)
    assert result["length"].tolist() == [len(ids) for ids in processor.encode(texts)]
    assert served({"text": TEXTS}, "tokenize")["length"].tolist() == [
        len(ids) for ids in translator.tokenizer.tokenize(TEXTS).to_list()
    ]
    back = served({"tokens": result["tokens"]}, "detokenize")["text"]
    assert [text.decode() for text in back] == processor.decode(processor.encode(texts))
    assert served({"tokens": ["</s> <pad> ▁a nosuchpiece <s>"]}, "detokenize")["text"][0].decode().split()[0] == "a"


def test_model_info(served, translator):
    keys = ["contract", "beam_size", "length_penalty", "tokenizer", "dtype", "framework_version", "tf_version"]
    keys += ["name", "version", "source_language", "target_language", "step", "nothing"]
    result = served({"key": keys}, "model_info")["value"]
    expected = [CONTRACT, "3", "0.6", translator.tokenizer.fingerprint, "float32", tt.__version__, tf.__version__]
    expected += ["name", "1", "en", "de", "29", ""]
    assert [value.decode() for value in result] == expected


@pytest.mark.parametrize("name", SIGNATURES)
def test_an_empty_batch(served, name):
    inputs, outputs, defaults = served.signatures[name]
    result = served({key: np.array([], object) for key in inputs if key not in defaults}, name)
    assert {key: value.shape for key, value in result.items()} == {
        key: (0, *shape[1:]) for key, (_, shape) in outputs.items()
    }


@pytest.mark.program
def test_completions_begin_with_their_prefix(served_ending, ending):
    texts = ["The old dog.", "", "Two doors.", "A red house."]
    prefixes = [ending(texts[0])[:3], "abc", "", ending(texts[3])]
    expected = ending.n_best(texts, 3, prefixes=prefixes)
    result = served_ending({"text": texts, "prefix": prefixes}, "complete")
    assert set(result) == TRANSLATIONS
    for row, hypotheses in enumerate(expected):
        assert [text.decode() for text in result["translations"][row][: len(hypotheses)]] == [
            best.text for best in hypotheses
        ]
        scores = [best.score for best in hypotheses]
        np.testing.assert_allclose(result["scores"][row][: len(hypotheses)], scores, rtol=1e-4, atol=1e-5)
    same = served_ending({"text": texts, "prefix": [""], "beam_size": np.array([2], np.int32)}, "complete")
    plain = served_ending({"text": texts, "beam_size": np.array([2], np.int32)}, "translate")
    assert {name: value.tolist() for name, value in same.items()} == {n: v.tolist() for n, v in plain.items()}


@pytest.mark.program
def test_no_prefix_fails_a_request(served_ending):
    prefixes = [b"\xff\x00", "x" * 9_999, "\U0001f600", "</s> <s>", " \n"]
    result = served_ending({"text": ["Two doors."] * len(prefixes), "prefix": prefixes}, "complete")
    assert all(text.decode() is not None for text in result["translations"].ravel())
    assert np.isfinite(result["scores"]).all()


def test_wrong_shapes_raise(served):
    for text in (np.array("a", object), np.array([["a", "b"]], object), np.array([[["a"]]], object)):
        for name in ("serving_default", "translate", "translate_details", "tokenize"):
            with pytest.raises(RuntimeError, match="code 3: .*Shape of tensor .* not compatible with expected shape"):
                served({"text": text}, name)
    with pytest.raises(RuntimeError, match="code 3: .*beam_size: expected a vector of length 1 or of the batch"):
        served({"text": ["a", "b", "c"], "beam_size": np.array([1, 2], np.int32)}, "translate")


def test_options_of_the_export(translator):
    """The translator's options must be in the ranges of the export."""
    steep, wide = translator.replace(length_penalty=5.1), translator.replace(beam_size=17)
    for model, wrong, message in (
        (translator, {"n_best": 17}, "n_best: expected 1 to 16, got 17"),
        (translator, {"max_beam_size": 2}, "beam_size: expected 1 to 2, got 3"),
        (translator.replace(min_length=9), {"max_length": 5}, "min_length: expected 0 to 5, got 9"),
        (steep, {}, "length_penalty: expected 0 to 5, got 5.1"),
        (wide, {}, "beam_size: expected 1 to 16, got 17"),
    ):
        with pytest.raises(tt.BadInput, match=f"^{message}$"):
            Export(model, **wrong)
    metadata = Export(wide, max_beam_size=23, max_length=513).metadata
    assert (metadata["beam_size"], metadata["max_beam_size"], metadata["max_length"]) == (17, 23, 513)


def test_hostile_texts(served):
    random = Random(5)
    for signature, inputs in hostile.PORTS:
        texts = [kind(random) for kind in hostile.KINDS]
        outputs = served(dict.fromkeys(inputs, texts) | hostile.options(random, signature, len(texts)), signature)
        assert not list(hostile.problems(outputs, len(texts)))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["10000", "2000 --batch 2"])
def test_many_hostile_texts(saved, sizes):
    command = [sys.executable, Path(__file__).parents[1] / "hostile.py", saved, "--threads", "64", "--count"]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run([*command, *sizes.split()], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]


def test_weights_that_are_not_finite_are_not_published(translator, tmp_path):
    """All formats raise, and name the first such weight."""
    model = translator.model.astype("float32")
    broken, last = translator.replace(model=model), model.weights[-1]
    last.assign(np.full(last.shape, np.nan))
    first = model.encoder_layers[0].feed_forward.hidden.bias
    first.assign([np.inf, *np.zeros(first.shape[0] - 1)])
    wrong = f"^{first.path}: expected finite weights, got NaN or infinity in 1 of {first.shape[0]}$"
    for format in formats():
        with pytest.raises(tt.BadInput, match=wrong):
            broken.save(tmp_path / "model/1", format=format)
    assert not (tmp_path / "model").exists()


@pytest.mark.program
def test_an_export_merges_lora(translator):
    """Shapes and names of its weights are those without LoRA."""
    model = translator.model.astype("float32")
    model.encoder_layers[0].self_attention.query_projection.enable_lora(3)
    layer = model.encoder_layers[0].self_attention.query_projection
    layer.lora_kernel_b.assign(np.random.default_rng(3).normal(size=layer.lora_kernel_b.shape))
    plain, result = translator.export().weights, translator.replace(model=model).export().weights
    assert [weight.shape for weight in result] == [weight.shape for weight in plain]
    changed = [i for i, (one, other) in enumerate(zip(result, plain, strict=True)) if np.any(one != other)]
    assert [translator.model.weights[i].path.split("/", 1)[1] for i in changed] == [
        "encoder_0/self_attention/query/kernel"
    ]
    np.testing.assert_allclose(result[changed[0]], layer.kernel, rtol=1e-5, atol=1e-6)
