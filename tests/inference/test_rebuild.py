"""Translators rebuilt from SavedModels and runs, and ensembles of several."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import HAS_EXTENSIONS, TEXTS, draw_weights

import tf_transformer as tt
from tf_transformer.serving.contract import Root
from tf_transformer.serving.saving import save_export
from tf_transformer.training.run import Run


def test_a_translator_from_its_savedmodel(translator, saved):
    """Weights, tokenizer and defaults come back."""
    again = tt.Translator.from_pretrained(saved.parent)
    assert again.options == translator.options
    assert again.model.config == translator.model.config
    assert again.tokenizer.model == translator.tokenizer.model
    for result, expected in zip(again.model.get_weights(), translator.model.get_weights(), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert tt.Translator.from_pretrained(saved, beam_size=1).beam_size == 1


def test_a_model_that_is_loaded_and_saved_again_keeps_its_limits(saved, tmp_path, monkeypatch):
    path = tmp_path / "models[1]" / "*" / "1"  # TensorFlow would take such names for patterns
    shutil.copytree(saved, path)
    limits = {"n_best": 2, "max_length": 37, "max_beam_size": 5}
    metadata = {"source_language": "en", "target_language": "de", "step": 29, "license": "none"}
    file = path / "assets.extra/tf_transformer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | limits | metadata | {"bleu": 31.7}))

    def metadata_of(translator, **options):
        result = translator.export(**options).metadata
        assert "bleu" not in result  # perhaps measured in another dtype
        return {name: result[name] for name in (*limits, *metadata)}

    assert metadata_of(tt.Translator.from_pretrained(path)) == limits | metadata
    assert metadata_of(tt.Translator.from_pretrained(path).astype("bfloat16"), max_length=41, step=31) == (
        limits | metadata | {"max_length": 41, "step": 31}
    )
    options = {"n_best": 3, "license": "MIT"}
    other = tt.Translator.from_pretrained(path, beam_size=7, export_options=options)
    assert metadata_of(other) == limits | metadata | {"max_beam_size": 7, "n_best": 3, "license": "MIT"}
    if HAS_EXTENSIONS:
        monkeypatch.setattr(
            "tf_transformer.extensions.interop.formats.litert.LiteRTFolder._converted", lambda *_: b"a file"
        )
        tt.Translator.from_pretrained(path).save(tmp_path / "litert", format="litert")
        written = json.loads((tmp_path / "litert/model.json").read_text())
        assert written["max_length"] == 37 and written["step"] == 29 and "max_beam_size" not in written
    file.write_text(json.dumps(json.loads(file.read_text()) | {"n_best": "2"}))
    with pytest.raises(tt.BadInput, match="n_best: expected a whole number, got '2'"):
        tt.Translator.from_pretrained(path)


def test_an_exact_search_comes_back_from_strict_json(translator, tmp_path):
    save_export(Root(translator.model, translator.tokenizer, (), {}, patience=math.inf), tmp_path / "1")
    metadata = (tmp_path / "1/assets.extra/tf_transformer.json").read_text()
    assert json.loads(metadata, parse_constant=lambda name: 1 / 0)["patience"] == "inf"
    assert tt.Translator.from_pretrained(tmp_path / "1").patience == math.inf


def test_weights_come_back_in_their_dtype(translator, tmp_path):
    model = translator.astype("bfloat16").model
    save_export(Root(model, translator.tokenizer, (), {}, beam_size=5, length_penalty=0.3), tmp_path / "1")
    again = tt.Translator.from_pretrained(tmp_path / "1")
    assert (again.beam_size, again.length_penalty, again.extra_length, again.patience) == (5, 0.3, 50, 2.0)
    assert {weight.dtype for weight in again.model.weights} == {"bfloat16"}
    for result, expected in zip(again.model.weights, model.weights, strict=True):
        np.testing.assert_array_equal(tf.cast(result, tf.float32), tf.cast(expected, tf.float32))


def test_savedmodels_that_cannot_be_read(saved, tmp_path):
    def fails(message):
        with pytest.raises(tt.BadInput, match=message):
            tt.Translator.from_pretrained(tmp_path / "1")

    def metadata(**changes):
        described = json.loads((saved / "assets.extra/tf_transformer.json").read_text()) | changes
        (tmp_path / "1/assets.extra/tf_transformer.json").write_text(json.dumps(described))

    fails("found nothing at")
    shutil.copytree(saved, tmp_path / "1")
    config = json.loads((saved / "assets.extra/tf_transformer.json").read_text())["config"]
    metadata(config=config | {"d_ff": 29})
    fails("1: expected the weights of a Transformer with this configuration, got shape .* instead of .*29")
    metadata(config=config | {"color": "red"})
    fails("expected the fields of a model's configuration, got also color")
    metadata(tokenizer="0" * 64)
    fails("expected a whole SavedModel of this package, got something else")
    metadata()
    (tmp_path / "1/assets.extra/tokenizer.model").write_bytes(b"PK")
    fails("expected a whole SavedModel of this package, got something else")
    (tmp_path / "1/assets.extra/tokenizer.model").unlink()
    with pytest.raises(FileNotFoundError, match="expected a file, found none at .*tokenizer.model"):
        tt.Translator.from_pretrained(tmp_path / "1")
    shutil.copy(saved / "assets.extra/tokenizer.model", tmp_path / "1/assets.extra")
    tt.Translator.from_pretrained(tmp_path / "1")
    (weights,) = (tmp_path / "1/variables").glob("*.data*")
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    fails("expected a whole SavedModel of this package, got something else")
    shutil.rmtree(tmp_path / "1/variables")
    fails("expected a whole SavedModel of this package, got something else")
    (tmp_path / "1/assets.extra/tf_transformer.json").unlink()
    fails("expected a SavedModel of this package, found no assets.extra/tf_transformer.json")


@pytest.fixture(scope="module")
def ensemble():
    models = []
    for seed in (13, 17):
        models.append(tt.Transformer(tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)))
        models[-1].build()
        draw_weights(models[-1], seed)
    return tt.Ensemble(models)


@pytest.mark.program
def test_an_ensemble_translates(translator, ensemble):
    """It averages the probabilities of its models."""
    both = tt.Translator(ensemble, translator.tokenizer, beam_size=2, extra_length=3)
    source, length, _ = both.source(tf.constant(["a"]))
    result = both.search(source, length)
    assert both(["a"]) == [text.decode() for text in both.texts(result.ids)[:, 0].numpy()]
    ids = result.ids[0, :, : int(result.lengths[0, 0])]
    log_probs = [tt.Translator(model, translator.tokenizer).score_targets(source, ids) for model in ensemble.models]
    expected = np.log(np.mean(np.exp(np.asarray(log_probs, "float64")), axis=0)).sum()
    assert float(result.log_probs[0, 0]) == pytest.approx(expected, abs=1e-4)
    assert both.attention(TEXTS[0], "Zwei Türen.").scores.cross[-1].shape[:2] == (1, 6)


@pytest.mark.extensions
def test_an_ensemble_is_not_converted(translator, ensemble):
    with pytest.raises(tt.BadInput, match="expected one model, which CTranslate2 can run, got an ensemble of 2"):
        tt.Translator(ensemble, translator.tokenizer).save("nowhere", format="ctranslate2")


def test_an_ensemble_of_runs(translator, ensemble, tmp_path):
    runs = [Run(tmp_path / name) for name in ("one", "two")]
    settings = {"kind": "translation", "model": ensemble.config.to_dict(), "recipe": {}, "corpus": {}}
    for run, model in zip(runs, ensemble.models, strict=True):
        model.compile("adam")
        run.begin(settings)
        translator.tokenizer.save(run.path / "tokenizer.model")
        run.save(model, 7)
    read = tt.load((run.path for run in runs), beam_size=2)
    assert read.beam_size == 2
    for result, expected in zip(read.model.get_weights(), ensemble.get_weights(), strict=True):
        np.testing.assert_array_equal(result, expected)
    texts = [text for pair in tt.toy_corpus.corpus(train=400, dev=0, test=0)["train"] for text in pair]
    tt.Tokenizer.train_from_iterator(texts, 350).save(runs[1].path / "tokenizer.model")
    with pytest.raises(tt.BadInput, match=r"expected runs with one tokenizer, got .*one .*two with several"):
        tt.Translator.from_pretrained([run.path for run in runs])
    with pytest.raises(tt.BadInput, match="^family: expected one model with it, got an ensemble of 2 runs$"):
        tt.load([run.path for run in runs], family="marian")
    with pytest.raises(tt.BadInput, match=r"three: expected a run, since several paths are"):
        tt.Translator.from_pretrained([runs[0].path, tmp_path / "three"])


@pytest.mark.extensions
def test_several_folders_are_runs_or_raise(saved, tmp_path):
    marian = Path(__file__).parents[1] / "marian/trained"
    for loads in (tt.load, tt.Translator.from_pretrained, tt.Parser.from_pretrained):
        for none in ([], (), iter([]), {}, {"runs": 1}):
            with pytest.raises(
                tt.BadInput,
                match="^(path: )?expected (a directory|a run's|a path|text).*, got |expected a run's directory",
            ):
                loads(none)
        with pytest.raises(tt.BadInput, match="^path: expected text, a path or a list, got None$"):
            loads(None)
    for models in (
        [saved, saved],
        (folder for folder in [marian, marian]),
        ["runs/none", saved],
        (saved.parent, marian),
    ):
        with pytest.raises(tt.BadInput, match="^.*: expected a run, since several paths are an ensemble of runs, "):
            tt.load(models)
    (tmp_path / "1").mkdir()
    (tmp_path / "1/model.tflite").touch()
    with pytest.raises(tt.BadInput, match="a LiteRT export, .*, which tt.load"):
        tt.Translator.from_pretrained(tmp_path)
