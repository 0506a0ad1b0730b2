"""Calls, replies, options and errors of all engines."""

import functools
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import HAS_EXTENSIONS
from hypothesis import example, given
from hypothesis import strategies as st

import tf_transformer as tt
from tf_transformer.inference import savedmodel
from tf_transformer.inference.engine import AVERAGE, Engine, Hypothesis, TranslationResult, batches, in_batches

TEXTS = ["The red door.", "", "Two doors.", "   ", "word " * 41]


@pytest.fixture(scope="module")
def engines(translator, loaded, request):
    """A translator and its exports. A list of one export is that export."""
    portable = {"litert": tt.load([request.getfixturevalue("lite")])} if HAS_EXTENSIONS else {}
    return {"translator": translator, "savedmodel": loaded, **portable}


def close(result, expected):
    """Compares texts, lengths and ends exactly, and scores within float32's precision."""
    for one, other in zip(result, expected, strict=True):
        assert [(a.text, a.finished, a.length) for a in one] == [(a.text, a.finished, a.length) for a in other]
        for field in ("score", "log_prob"):
            np.testing.assert_allclose(*([getattr(a, field) for a in row] for row in (one, other)), rtol=1e-4)


@pytest.mark.program
@pytest.mark.filterwarnings("ignore:more tokens")
def test_they_return_the_same(engines):
    options = {"length_penalty": 1.7, "max_length": 7}

    def best(engine):
        return engine(TEXTS), engine(TEXTS[0])

    def lists(engine):
        return [*engine.n_best(TEXTS, 2), *engine.n_best(TEXTS[:1], 3, **options)]

    expected, expected_lists = best(engines["translator"]), lists(engines["translator"])
    for engine in engines.values():
        assert isinstance(engine, Engine)
        assert best(engine) == expected
        close(lists(engine), expected_lists)
        assert engine.n_best([""]) == [[Hypothesis("", 0.0, 0.0, False, 0)]]
        assert engine([]) == [] == engine.n_best([], 3)


OTHER_PROCESS = """
import os, pickle, sys
os.chdir("/")
engines, texts = pickle.load(sys.stdin.buffer)
print([engine(texts) for engine in engines])
"""


def tiny_model():
    model = tt.Transformer(tt.TransformerConfig(1, 12, 17, 3, vocab_size=350))
    model.build()
    return model


def test_models_pickle(translator):
    translator = translator.replace(beam_size=2, batch_size=5)
    engines = [translator.replace(model=tt.Ensemble([tiny_model(), tiny_model()]))]
    if HAS_EXTENSIONS:
        from test_parsing import small_parser

        engines.append(small_parser())
    for engine in engines:
        again = pickle.loads(pickle.dumps(engine))
        assert type(again) is type(engine)
        assert again.options == engine.options and again.batch_size == engine.batch_size
        models = [getattr(engine, "translator", engine).model for engine in (again, engine)]
        for result, expected in zip(*(model.get_weights() for model in models), strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.program
@pytest.mark.filterwarnings("ignore:more tokens")
def test_engines_pickle_for_other_processes(translator, saved, request, monkeypatch):
    """Another process opens the files from any working directory. `ONNX` pickles like `LiteRT`."""
    portable = request.getfixturevalue("lite") if HAS_EXTENSIONS else saved
    monkeypatch.chdir(portable.parents[1])
    options, texts = {"length_penalty": 1.3, "max_length": 7}, TEXTS[::2]
    engines = [tt.load("name", **options), tt.load(saved, batch_size=3, **options)]
    engines.append(translator.replace(model=tiny_model(), beam_size=1))
    command = [sys.executable, "-c", OTHER_PROCESS]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, input=pickle.dumps((engines, texts)), capture_output=True, env=environment)
    expected = [engine(texts) for engine in engines]
    assert done.returncode == 0 and done.stdout.decode().strip() == str(expected), done.stderr.decode()[-999:]


@pytest.mark.program
def test_the_options_of_a_call_are_those_of_another_translator(engines):
    options = {"beam_size": 2, "length_penalty": 0.3, "min_length": 5, "no_repeat_ngram_size": 3}
    other = engines["translator"].replace(**options)
    for name in ("translator", "savedmodel"):
        close(engines[name].n_best(TEXTS[:3], 2, **options), other.n_best(TEXTS[:3], 2))


def test_a_reply_has_length_and_truncated(engines):
    tokens = engines["translator"].tokenizer.tokenize(TEXTS).row_lengths().numpy().tolist()
    for engine in engines.values():
        replies = engine.replies(TEXTS)
        assert [reply.source for reply in replies] == TEXTS
        assert [reply.length for reply in replies[:4]] == tokens[:4]
        assert [reply.truncated for reply in replies] == [False, False, False, False, True]
        assert [reply.empty for reply in replies] == [False, True, False, True, False]
        (huge,) = engine.replies(["word " * 41_000])  # its tokens are not counted to the end
        assert huge.truncated and 41 < huge.length < 41_000
    assert TranslationResult("a\nb", (Hypothesis("c\r\nd", 0.0),), 2, False).line == "c d"


def test_warnings_are_at_the_callers_line(engines):
    with pytest.warns(UserWarning, match="n_best: expected at most beam_size=2 outputs, got 3") as seen:
        assert len(engines["translator"].n_best(TEXTS[:1], 3, beam_size=2)[0]) <= 2
    assert [warning.filename for warning in seen] == [__file__]
    for engine in engines.values():
        for call in (engine, functools.partial(engine.n_best, n=2)):
            with pytest.warns(UserWarning, match="in 1 of 2 texts, truncated: .word word") as seen:
                call(TEXTS[3:])
            assert [warning.filename for warning in seen] == [__file__]


def test_a_call_leaves_the_filters_of_warnings_alone(engines, monkeypatch):
    """All threads share the filters, so overlapping calls would restore each other's."""

    entered = []

    def enter(manager):
        entered.append(sys._getframe(1).f_globals["__name__"])

    for engine in engines.values():
        with monkeypatch.context() as patched:
            patched.setattr("warnings.catch_warnings.__enter__", enter)
            patched.setattr("warnings.catch_warnings.__exit__", lambda *_: None)
            engine.replies(TEXTS[3:])
    assert not [name for name in entered if name.startswith("tf_transformer.")]


def test_wrong_calls_raise(engines):
    for engine in engines.values():
        with pytest.raises(TypeError, match="options of a call: expected .*length_penalty.*; got temperature$"):
            engine(TEXTS[:1], temperature=1.0)
        for options, message in (
            ({"patience": 3}, "patience: expected none in a call, since this engine fixes it, got 3"),
            ({"length_penalty": -0.5}, "length_penalty: expected 0 to .*, got -0.5"),
            ({"length_penalty": float("nan")}, "length_penalty: expected 0 to .*, got nan"),
            ({"target_language": "de"}, "target_language: expected none, since this model has one pair of languages"),
        ):
            with pytest.raises(tt.BadInput, match=message):
                engine(TEXTS[:1], **options)
        with pytest.raises(tt.BadInput, match="texts: expected strings, got int at index 1"):
            engine(["a", 7])
    for name, most in {"savedmodel": 4, "litert": 3}.items():
        if name in engines:
            with pytest.raises(tt.BadInput, match=f"n_best: expected 1 to {most}, got {most + 1}"):
                engines[name].n_best(TEXTS[:1], most + 1)


@pytest.mark.extensions
def test_an_export_fixes_its_beam_size(engines):
    with pytest.raises(tt.BadInput, match="beam_size: expected none in a call"):
        engines["litert"](TEXTS[:1], beam_size=2)


def test_replies_come_in_order_while_texts_are_read(engines):
    """The first batch is small, and texts are read lazily."""
    texts = [f"The {number} dogs see a cat." for number in range(7)]
    for engine in engines.values():
        expected, read = engine.replies(texts, 2, length_penalty=1.7), []

        def lazily(read=read):
            for text in texts:
                read.append(text)
                yield text

        replies = engine.stream(lazily(), 2, length_penalty=1.7)
        assert not read
        first = next(replies)
        assert len(read) == min(engine.batch_size, 7)
        close([first.hypotheses, *(reply.hypotheses for reply in replies)], [reply.hypotheses for reply in expected])
        with pytest.raises(tt.BadInput, match="length_penalty: expected 0 to"):
            engine.stream(texts, length_penalty=-1)  # now, and not at the first reply
        with pytest.raises(tt.BadInput, match="texts: expected strings, got int at index 1"):
            list(engine.stream(["a", 7]))


def test_tensorflow_s_strings_are_texts(engines):
    expected = engines["translator"](TEXTS[:3])
    tensors = tf.constant(TEXTS[:3])
    for engine in engines.values():
        assert engine(tensors) == engine(tf.data.Dataset.from_tensor_slices(tensors)) == expected
        assert engine(tf.constant(TEXTS[0])) == expected[0]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ([], "expected"),
        ({"n_best": "many"}, "n_best: expected a whole number, got 'many'"),
    ],
)
def test_untrusted_metadata_raises(metadata, message, saved, tmp_path):
    shutil.copytree(saved, tmp_path / "1")
    (tmp_path / "1/assets.extra/tf_transformer.json").write_text(json.dumps(metadata))
    with pytest.raises(tt.BadInput, match=message) as error:
        tt.load(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("languages", ["en, de", "en", ["en", "de"], 7, {"de": 1}, None])
def test_languages_of_a_card_do_not_make_a_model_multilingual(languages, saved, tmp_path):
    """A model of one pair has no inputs for languages, whatever its metadata lists."""
    shutil.copytree(saved, tmp_path / "1")
    file = tmp_path / "1/assets.extra/tf_transformer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"languages": languages}))
    engine = tt.load(tmp_path)
    assert not engine.languages and engine.metadata["languages"] == languages
    with pytest.raises(tt.BadInput, match="target_language: expected none, since this model has one pair"):
        engine(TEXTS[:1], target_language="de")


@pytest.mark.parametrize("text", ["Hi you", b"Hi you", np.array("Hi you")])
def test_one_text_is_no_list_of_letters(text, engines):
    for engine in engines.values():
        for method in (engine.aligned, engine.n_best, engine.stream, engine.replies):
            with pytest.raises(tt.BadInput, match="texts: expected a list, got .*Hi you"):
                method(text)


def test_a_model_without_text_raises(tmp_path):
    module = tf.Module()
    module.double = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    tf.saved_model.save(module, str(tmp_path / "1"), signatures=module.double)
    with pytest.raises(tt.BadInput, match="whose serving_default returns one string"):
        tt.load(tmp_path)


@pytest.mark.parametrize(
    "names, translates",
    [([], True), (["mine"], True), (["model_info", "translate"], True), (["model_info", "parse"], False)],
)
def test_exports_of_other_tasks_do_not_translate(names, translates, tmp_path):
    root = tf.Module()
    root.f = tf.function(lambda text: {"text": tf.strings.upper(text)}, [tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(root, str(tmp_path / "1"), dict.fromkeys(["serving_default", *names], root.f))
    engine = tt.load(tmp_path)
    assert engine.translates == translates and engine("a") == "A"


@pytest.mark.parametrize("names", [["text"], ["words", "labels"]])
def test_several_texts_per_row_raise(names, tmp_path):
    """As of another library's tagger, whose words are not joined."""
    root = tf.Module()
    words = lambda text: dict.fromkeys(names, tf.strings.split(text).to_tensor())  # noqa: E731
    root.f = tf.function(words, [tf.TensorSpec([None], tf.string)], autograph=False)
    tf.saved_model.save(root, str(tmp_path / "1"), {"serving_default": root.f})
    with pytest.raises(tt.BadInput, match="whose serving_default returns one string for `text`, got 0 for text"):
        tt.load(tmp_path)


def test_a_path_that_does_not_exist_imports_no_engine(tmp_path, monkeypatch):
    monkeypatch.setattr("tf_transformer.registry.find", None)
    for path in (tmp_path / "nowhere", "./nowhere", "../nowhere/1", "~/nowhere"):
        with pytest.raises(tt.BadInput, match="^expected a model's directory, .*, found nothing at "):
            tt.load(path)


@pytest.mark.parametrize("action", [savedmodel.OTHERWISE, *savedmodel.MISSING.values()])
def test_an_operation_that_tensorflow_lacks_raises_one_line(action, tmp_path, monkeypatch):
    """As `_QuantizedMatMul` of an int8 export on macOS: the name of one is changed to that of none."""
    root = tf.Module()
    root.f = tf.function(lambda text: {"text": tf.strings.upper(text)}, [tf.TensorSpec([None], tf.string)])
    tf.saved_model.save(root, str(tmp_path / "1"), {"serving_default": root.f})
    assert tt.load(tmp_path / "1")("a") == "A"
    file = tmp_path / "1" / "saved_model.pb"
    file.write_bytes(file.read_bytes().replace(b"StringUpper", b"StringLater"))
    if action != savedmodel.OTHERWISE:
        monkeypatch.setattr(savedmodel, "MISSING", {"StringLater": action})
    message = f"expected a SavedModel whose operations this TensorFlow has, got one with StringLater. {action}."
    with pytest.raises(tt.BadInput) as error:
        tt.load(tmp_path / "1")
    assert str(error.value) == f"{tmp_path / '1'}: {message}"


def cost_of(rows, longest):
    return rows * max(64, longest)


@given(st.lists(st.integers(0, 300)), st.integers(1, 1_000))
@example([0, 1, 2], 130)
@example([2_000] * 5, 3)
def test_batches_are_of_similar_length_and_bounded_cost(sizes, most):
    result = list(batches(sizes, most, cost_of))
    assert sorted(index for batch in result for index in batch) == list(range(len(sizes)))
    assert [sizes[index] for batch in result for index in batch] == sorted(sizes)
    for batch in result:
        assert cost_of(len(batch), max(sizes[index] for index in batch)) <= most or len(batch) == 1
    for batch, following in itertools.pairwise(result):  # none could have been larger
        assert cost_of(len(batch) + 1, sizes[following[0]]) > most
    texts, seen = ["x" * size for size in sizes], []
    assert in_batches(lambda indices: seen.append(indices) or [len(texts[i]) for i in indices], texts, most) == sizes
    for batch in seen:
        assert (len(batch) <= most and len(batch) * max(sizes[i] for i in batch) <= most * AVERAGE) or len(batch) == 1
