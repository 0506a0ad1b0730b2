"""Text in, text out: in Python, and from a SavedModel in processes that know nothing of this package."""

import json
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_transformer as tt
from tf_transformer import grammar
from tf_transformer.translator import next_version

TEXTS = [
    "The old woman opens the red door.",
    "",
    "   ",
    "\x00\x01",
    b"\xff\xfe broken \xc3",
    "</s> <pad> <unk>",
    "東京 😀",
    "door " * 3000,
    "Two doors.",
]


@pytest.fixture(scope="module")
def translator():
    pairs = grammar.corpus(train=600, dev=0, test=0)["train"]
    tokenizer = tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 350)
    keras.utils.set_random_seed(11)
    model = tt.Transformer(tt.TransformerConfig(2, 24, 31, 3, d_k=5, d_v=7, vocab_size=350))
    model.build()
    for variable in model.trainable_variables:  # large weights: outputs that differ from row to row
        variable.assign(variable + 0.3 * np.random.default_rng(1).normal(size=variable.shape))
    return tt.Translator(model, tokenizer, beam_size=3, extra_length=7, max_source_length=41, batch_size=4)


@pytest.fixture(scope="module")
def saved(translator, tmp_path_factory):
    path = tmp_path_factory.mktemp("savedmodels") / "name" / "1"
    translator.save(path)
    return path


def test_a_batch_answers_as_its_sentences_alone(translator):
    together = translator.n_best(TEXTS, 2)
    for text, answers in zip(TEXTS, together, strict=True):
        (alone,) = translator.n_best([text], 2)
        assert [answer.text for answer in answers] == [answer.text for answer in alone]
        np.testing.assert_allclose([a.score for a in answers], [a.score for a in alone], rtol=1e-4, atol=1e-4)


def test_nothing_in_nothing_out(translator):
    assert translator(TEXTS[1:4]) == ["", "", ""]
    assert translator([]) == []
    assert translator.n_best([""], 2)[0] == [("", 0.0, 0.0, False)]


def test_a_string_gives_a_string(translator):
    assert translator(TEXTS[0]) == translator([TEXTS[0]])[0] != ""


def test_n_best_is_sorted_and_distinct(translator):
    (answers,) = translator.n_best(TEXTS[:1], 5)
    assert len(answers) == 3  # no more than there are beams
    scores = [answer.score for answer in answers]
    assert scores == sorted(scores, reverse=True)
    assert len({answer.text for answer in answers}) > 1


def test_reads_the_weights_of_a_model_that_goes_on_training(translator):
    before = translator(TEXTS[0])
    bias = translator.model.decoder_layers[0].feed_forward.output_projection.bias
    kept = bias.numpy()
    bias.assign(kept + 3 * np.arange(len(kept)))
    assert translator(TEXTS[0]) != before
    bias.assign(kept)
    assert translator(TEXTS[0]) == before


def test_wrong_arguments(translator):
    with pytest.raises(TypeError, match="texts: expected strings, got int at place 1"):
        translator(["a", 7])
    small = tt.Transformer(tt.TransformerConfig(1, 12, 17, 3, vocab_size=30))
    with pytest.raises(tt.BadInput, match="vocab_size=30, got 350"):
        tt.Translator(small, translator.tokenizer)


@pytest.mark.parametrize("wrong", [{"beam_size": 0}, {"alpha": -0.1}, {"extra_length": 0}, {"max_source_length": 0}])
def test_wrong_options(translator, wrong):
    with pytest.raises(tt.BadInput, match="expected beam_size, extra_length and max_source_length of at least 1"):
        tt.Translator(translator.model, translator.tokenizer, **wrong)


def test_learned_positions_bound_the_lengths(translator):
    config = tt.TransformerConfig(1, 12, 17, 3, positions="learned", max_length=9, vocab_size=350)
    model = tt.Transformer(config)
    model.build()
    assert len(tt.Translator(model, translator.tokenizer)(["door " * 50, "a"])) == 2


def test_save_is_whole_or_not_at_all(translator, saved, monkeypatch):
    with pytest.raises(FileExistsError, match="expected a new folder"):
        translator.save(saved)
    assert [path.name for path in saved.parent.iterdir()] == ["1"]

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tf.saved_model, "save", full)
    with pytest.raises(OSError, match="No space left"):
        translator.save(saved.parent / "2")
    assert [path.name for path in saved.parent.iterdir()] == ["1"]


def test_next_version(saved):
    assert next_version(saved.parent).name == "2"
    assert next_version(saved.parent / "nowhere").name == "1"


def test_what_lies_beside_the_graph(translator, saved):
    description = json.loads((saved / "assets.extra" / "tf_transformer.json").read_text())
    assert tt.TransformerConfig(**description["config"]) == translator.model.config
    assert description["tokenizer"] == translator.tokenizer.fingerprint
    batching = (saved / "batching_params.pbtxt").read_text()
    sizes = [int(size) for size in re.findall(r"allowed_batch_sizes: (\d+)", batching)]
    assert f"max_batch_size {{ value: {sizes[-1]} }}" in batching  # or the server refuses to load
    assert sizes == sorted(sizes)


def test_weights_are_stored_once(translator, saved):
    stored = sum(path.stat().st_size for path in (saved / "variables").iterdir())
    assert stored < 1.1 * 4 * translator.model.count_params() + 20_000  # names and an index beside float32 weights


TF2 = """
import tensorflow as tf, tensorflow_text
model = tf.saved_model.load(path)
answer = model.signatures["serving_default"](text=tf.constant(texts))
found = {name: value.numpy() for name, value in answer.items()}
"""

# The loader and session of TensorFlow Serving, fed by tensor names; only the tokenizer's op library is loaded.
SESSION = """
import importlib.util, os, tensorflow as tf
where = os.path.dirname(importlib.util.find_spec("tensorflow_text").origin)
tf.load_op_library(os.path.join(where, "python", "ops", "_sentencepiece_tokenizer.so"))
with tf.compat.v1.Session(graph=tf.Graph()) as session:
    signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
    outputs = {name: info.name for name, info in signature.outputs.items()}
    found = session.run(outputs, {signature.inputs["text"].name: texts})
"""

PROGRAM = """
import json, sys
path, texts = sys.argv[1], [bytes.fromhex(text) for text in json.loads(sys.argv[2])]
{load}
assert "tf_transformer" not in sys.modules
found["translation"] = [text.decode() for text in found["translation"]]
print(json.dumps({{name: list(map(str, values)) for name, values in found.items()}}))
"""


@pytest.mark.parametrize("load", [TF2, SESSION], ids=["tensorflow 2", "session"])
def test_a_process_that_never_saw_the_package(translator, saved, tmp_path, load):
    moved = saved.rename(tmp_path / "7")
    try:
        texts = json.dumps([(text.encode() if isinstance(text, str) else text).hex() for text in TEXTS])
        command = [sys.executable, "-c", PROGRAM.format(load=load), str(moved), texts]
        process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert process.returncode == 0, process.stderr
        found = json.loads(process.stdout.splitlines()[-1])
    finally:
        moved.rename(saved)
    expected = [best[0] for best in translator.n_best(TEXTS, 1)]
    assert found["translation"] == [best.text for best in expected]
    np.testing.assert_allclose([float(s) for s in found["score"]], [best.score for best in expected], rtol=1e-4)
    assert found["truncated"] == [str("door door" in str(text)) for text in TEXTS]


@pytest.fixture(scope="module")
def loaded(saved):
    return tf.saved_model.load(str(saved))


def numbers(answer):
    return {name: value.numpy() for name, value in answer.items()}


def test_options_are_by_row(loaded, translator):
    """Rows with options of their own answer as each would alone with those."""
    texts, sizes, alphas, limits = TEXTS[:1] * 4 + TEXTS[6:], [1, 2, 5, 99, 3, 0, 4], 7 * [0.6], [9, 9, 3, 5, 9, 2, 999]
    alphas[1:4] = [0.0, 1.3, -2.0]
    together = numbers(
        loaded.translate(tf.constant(texts), tf.constant(sizes), tf.constant(alphas), tf.constant(limits))
    )
    for row, text in enumerate(texts):
        options = (tf.constant([value]) for value in (sizes[row], alphas[row], limits[row]))
        alone = numbers(loaded.translate(tf.constant([text]), *options))
        for name, value in alone.items():
            if value.dtype == np.float32:
                np.testing.assert_allclose(together[name][row], value[0], rtol=1e-4, atol=1e-4)
            else:
                np.testing.assert_array_equal(together[name][row], value[0], err_msg=name)
        used = alone["scores"][0] > -1e8
        assert used.sum() <= np.clip(sizes[row], 1, 4)
        assert (alone["lengths"][0] <= limits[row]).all()


def test_defaults_are_the_translators(loaded, translator):
    found = numbers(loaded.translate(tf.constant(TEXTS)))
    expected = translator.n_best(TEXTS, 4)
    for row, answers in enumerate(expected):
        assert [text.decode() for text in found["translations"][row]][: len(answers)] == [a.text for a in answers]
        np.testing.assert_allclose(found["scores"][row][: len(answers)], [a.score for a in answers], rtol=1e-4)
        assert (found["scores"][row][len(answers) :] == -1e9).all()


def test_score_is_what_the_search_found(loaded, translator):
    """Forcing the search's own output gives the log-probability that the search summed step by step."""
    source = tf.constant(TEXTS)
    found, details = numbers(loaded.translate(source)), numbers(loaded.translate_details(source))
    for row in np.flatnonzero(found["finished"][:, 0]):
        n = found["lengths"][row, 0]
        assert (details["token_scores"][row, 0, n:] == 0).all()
        end = found["log_probs"][row, 0] - details["token_scores"][row, 0].sum()  # the end symbol's
        assert end < 1e-4
        tokens = details["tokens"][row, 0].decode().split(" ")
        assert len(tokens) == n
        pairs = [pair.split("-") for pair in details["alignments"][row, 0].decode().split()]
        assert [int(t) for _, t in pairs] == list(range(n))
        assert all(int(s) < found["source_length"][row] for s, _ in pairs)
    texts = found["translations"][:, 0]
    ids = translator.tokenizer.tokenize(texts).to_list()
    scored = numbers(loaded.score(source, tf.constant(texts)))
    compared = 0
    for row in np.flatnonzero(found["finished"][:, 0]):
        pieces = [piece.decode() for piece in translator.tokenizer.pieces(tf.constant([ids[row]], tf.int32)).numpy()[0]]
        if " ".join(pieces) == details["tokens"][row, 0].decode():  # the text was cut into pieces as the model wrote it
            assert scored["log_prob"][row] == pytest.approx(found["log_probs"][row, 0], abs=1e-3)
            assert scored["score"][row] == pytest.approx(found["scores"][row, 0], abs=1e-3)
            assert scored["length"][row] == found["lengths"][row, 0]
            compared += 1
    assert compared or not found["finished"].any()


def test_every_output_is_what_the_whole_sequence_says(translator):
    """The cache's slots are shared by the beams: each must see its own history there, also after changing places."""
    source, length, _ = translator.source(tf.constant([TEXTS[0], TEXTS[6], TEXTS[8]]))
    found = translator.search(source, length, 5, 0.6, 9, 5)
    B, N, L = found.ids.shape
    log_probs, _ = translator.force(tf.repeat(source, N, axis=0), tf.reshape(found.ids, [B * N, L]))
    there = np.arange(L) < found.lengths.numpy()[..., None]
    expected = np.where(there, log_probs.numpy().reshape(B, N, L), 0.0).sum(-1)
    assert (found.lengths.numpy() > 1).all()
    np.testing.assert_allclose(found.log_probs, expected, rtol=1e-4, atol=1e-4)


def test_tokenize_and_back(loaded, translator):
    tokens = numbers(loaded.tokenize(tf.constant(TEXTS)))
    assert tokens["length"].tolist() == [len(ids) for ids in translator.tokenizer.tokenize(TEXTS).to_list()]
    back = numbers(loaded.detokenize(tf.constant(tokens["tokens"])))["text"]
    assert [text.decode() for text in back[[0, 5, 6, 8]]] == [TEXTS[i] for i in (0, 5, 6, 8)]


def test_model_info(loaded, translator):
    keys = ["contract", "beam_size", "tokenizer", "nothing"]
    answer = numbers(loaded.model_info(tf.constant(keys)))["value"]
    assert [value.decode() for value in answer] == ["1", "3", translator.tokenizer.fingerprint, ""]


@pytest.mark.parametrize("name", ["translate", "translate_details", "score", "tokenize", "detokenize", "model_info"])
def test_an_empty_batch(loaded, name):
    function = loaded.signatures[name]
    empty = {key: tf.constant([], tf.string) for key in ("source", "target", "key", "text", "tokens")}
    options = {"beam_size": tf.constant([2]), "length_penalty": tf.constant([0.5]), "max_length": tf.constant([5])}
    arguments = {key: (empty | options)[key] for key in function.structured_input_signature[1]}
    assert all(value.shape[0] == 0 for value in function(**arguments).values())


def test_wrong_shapes_are_refused(loaded):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="beam_size: expected a vector of length 1 or of the batch"
    ):
        loaded.translate(tf.constant(["a", "b", "c"]), tf.constant([1, 2]))
    with pytest.raises((ValueError, TypeError, tf.errors.InvalidArgumentError)):
        loaded.signatures["serving_default"](text=tf.constant([["a"]]))


def test_called_from_python(translator, saved):
    assert tt.SavedTranslator(saved, batch_size=2)(TEXTS) == translator(TEXTS)
    with pytest.raises(tt.BadInput, match="found no saved_model.pb"):
        tt.SavedTranslator(saved.parent)
