"""Tests checkpoints for `transformers`: they equal those that it wrote, and can be read."""

import json

import numpy as np
import pytest
from checkpoints import M2M100, MAKERS, MARIAN
from conftest import array, draw_weights, random_model
from test_ctranslate2 import Doubling, OtherParts

import tf_transformer as tt
from tf_transformer.extensions.interop.families.marian.model import MarianConfig
from tf_transformer.extensions.interop.formats.hugging_face import save
from tf_transformer.models.families import build_model
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID
from trainers import export

numpy = pytest.importorskip("safetensors.numpy")
CHECKPOINTS = {"marian": MARIAN, "m2m100": M2M100}  # files of `transformers`
SIZES = {"dropout": 0.0, "vocab_size": 350}


def settings_in(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(translator):
    return translator.tokenizer


@pytest.fixture(scope="module")
def own(tokenizer):
    return tt.Translator(random_model(350, 3, 2.0, {}), tokenizer, beam_size=3)


@pytest.fixture(scope="module")
def read():
    return {name: tt.Translator.from_pretrained(folder) for name, folder in CHECKPOINTS.items()}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_is_written_as_it_was(kind, read, tmp_path):
    """Compares tensors, vocabulary and settings in both. 16 bits become 32."""
    save(read[kind], path := tmp_path / "again")
    tensors, expected = (numpy.load_file(folder / "model.safetensors") for folder in (path, CHECKPOINTS[kind]))
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        if name == "final_logits_bias":  # Only padding's differs.
            assert tensors[name][0, -1] == -30
            tensors[name][0, -1] = tensor[0, -1]
        np.testing.assert_array_equal(tensors[name], tensor.astype("float32"), name)
    assert settings_in(path, "vocab.json") == settings_in(CHECKPOINTS[kind], "vocab.json")
    ours = {"dtype", "max_position_embeddings", "model_max_length", "added_tokens_decoder"}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        before, after = settings_in(CHECKPOINTS[kind], name), settings_in(path, name)
        shared = before.keys() & after.keys() - ours
        assert len(shared) > 3 and {key: after[key] for key in shared} == {key: before[key] for key in shared}
    before, after = (settings_in(folder, "tokenizer_config.json") for folder in (CHECKPOINTS[kind], path))
    if kind == "m2m100":
        assert before["added_tokens_decoder"].items() <= after["added_tokens_decoder"].items()


KINDS = [*CHECKPOINTS, *(pytest.param(kind, marks=pytest.mark.program) for kind in ("separate", "release", "nllb"))]


@pytest.mark.parametrize("kind", KINDS)
def test_exports_can_be_read(kind, read, tmp_path):
    """Weights are equal bit for bit, and so are tokenizer and options."""
    if kind not in read:
        MAKERS[kind](tmp_path / "source")
    before = read.get(kind) or tt.Translator.from_pretrained(tmp_path / "source")
    before.save(tmp_path / "again", format="transformers", checked=kind not in read, license="mit")
    after = tt.Translator.from_pretrained(tmp_path / "again")
    assert after.model.config == before.model.config and after.options == before.options
    assert after.tokenizer.fingerprint == before.tokenizer.fingerprint
    for weight, other in zip(after.model.weights, before.model.weights, strict=True):
        np.testing.assert_array_equal(array(weight), array(other), weight.path)
    assert after.export_options["license"] == "mit"
    assert after.export_options["max_length"] == before.export_options.get("max_length", 306)


def logits(model, *ids):
    return array(model(ids))[ids[1] > 0]


OTHERS = [pytest.param(kind, marks=pytest.mark.program) for kind in ("narrow heads", "Marian's layers")]


@pytest.mark.parametrize("kind", ["the paper's", *OTHERS])
def test_a_custom_model_becomes_marians(kind, own, translator, tmp_path):
    ours = {"the paper's": own, "narrow heads": translator}.get(kind)
    if ours is None:
        sizes = {"num_layers": 1, "d_model": 14, "d_ff": 23, "num_heads": 2, "num_decoder_layers": 2}
        sizes |= {"num_decoder_heads": 7, "decoder_d_ff": 29, "dropout": 0.0, "scale_embedding": False}
        ours = tt.Translator(build_model(MarianConfig(**sizes, vocab_size=350)), own.tokenizer)
        draw_weights(ours.model)
    save(ours, tmp_path / "1", checked=True)
    read = tt.Translator.from_pretrained(tmp_path / "1")
    assert read.beam_size == ours.beam_size and type(read.model.config).__name__ == "MarianConfig"
    sources, targets = ["Two doors.", "The old woman opens the red door. 東"], ["Eine Tür.", "Die alte Frau"]
    assert read.tokenizer.encode(sources) == ours.tokenizer.encode(sources)
    source = ours.read(sources, ours.tokenizer)[0]
    target = np.pad(ours.read(targets, ours.tokenizer)[0], [(0, 0), (1, 0)], constant_values=BOS_ID)[:, :-1]
    outputs, expected = (logits(model, source, target) for model in (read.model, ours.model))
    np.testing.assert_allclose(outputs[:, EOS_ID:], expected[:, EOS_ID:], atol=1e-3)  # epsilon may be another
    assert outputs[:, :EOS_ID].max() < expected[:, EOS_ID:].min()  # padding and start have no share, nor there
    assert numpy.load_file(tmp_path / "1/model.safetensors")["final_logits_bias"][0, -1] == -30


def test_a_trained_bos(read, tmp_path):
    """M2M100's targets start with EOS, whose row training changes differently."""
    translator = read["m2m100"].replace(model=read["m2m100"].model.astype("float32"), target_language="de")
    embedding = translator.model.embedding
    assert not embedding.logits_bias.trainable
    table = array(embedding.embeddings).copy()
    table[BOS_ID] *= 1.5
    embedding.embeddings.assign(table)
    save(translator, tmp_path / "tuned")
    again = tt.Translator.from_pretrained(tmp_path / "tuned")
    assert again.tokenizer.shares_vocabulary(translator.tokenizer) and again.tokenizer.vocab_size == len(table)
    np.testing.assert_array_equal(array(again.model.embedding.embeddings), table)
    settings, start = settings_in(tmp_path / "tuned", "generation_config.json"), len(table) - 2
    assert settings["decoder_start_token_id"] == start and settings["suppress_tokens"] == [start]
    tokens = settings_in(tmp_path / "tuned", "tokenizer_config.json")["added_tokens_decoder"]
    assert tokens[str(settings["forced_bos_token_id"])]["content"] == "__de__"
    assert tokens[str(start)]["content"] == "<start>" and tokens[str(start)]["special"]
    embedding.logits_bias.assign(embedding.logits_bias + 1)
    with pytest.raises(
        tt.BadInput, match="logits_bias: expected zeros, since M2M100's logits have no bias, got others"
    ):
        save(translator, tmp_path / "biased")


def config(**changes):
    """Returns the configuration of a small model."""
    return tt.TransformerConfig(**({"num_layers": 1, "d_model": 14, "d_ff": 23, "num_heads": 2} | SIZES | changes))


class Windowed(tt.Transformer):
    def make_encoder_layers(self):
        return [tt.layers.RestrictedEncoderLayer(**self.layer_options(), window=5, name="encoder_0")]


REJECTED = {  # configurations by their message
    "positions: expected sinusoidal, as MarianMT's models have it, got learned": config(positions="learned"),
    "norm_first: expected False, as MarianMT's models have it, got True": config(norm_first=True),
    "expected heads of at most d_model / num_heads=7 numbers .* got num_heads=2, d_k=9, d_v=7": config(d_k=9),
    "encoder_0: .* what EncoderLayer does, .* got RestrictedEncoderLayer, which overrides att": config(d_k=6),
    "activation: expected the same value in all layers, .* got gelu and relu and silu": config(d_k=3, d_v=5),
}


SLOWER = [pytest.param(message, marks=[pytest.mark.program] * (index > 2)) for index, message in enumerate(REJECTED)]


@pytest.mark.parametrize("message", SLOWER)
def test_unsupported_models_raise_one_line(message, tokenizer, tmp_path):
    variants = {"activation": OtherParts, "Restricted": Windowed}
    kind = next((kind for word, kind in variants.items() if word in message), tt.Transformer)
    model = kind(REJECTED[message])
    with pytest.raises(tt.BadInput, match=message) as error:
        save(tt.Translator(model, tokenizer), tmp_path / "checkpoint")
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_other_translators_are_rejected(own, read, tmp_path, monkeypatch):
    both = tt.Translator(tt.Ensemble([own.model, own.model]), own.tokenizer)
    mixed = tt.Translator(tt.Transformer(config(vocab_size=371)), read["m2m100"].tokenizer)
    for translator, dtype, message in (
        (both, None, "expected one model, as a checkpoint has it, got an ensemble of 2"),
        (mixed, None, "languages: expected 0, as MarianMT's models have it, got 100"),
        (own, "int8", "dtype: expected 'float32', 'bfloat16', 'float16' or None, got 'int8'"),
    ):
        with pytest.raises(tt.BadInput, match=message):
            save(translator, tmp_path / "checkpoint", dtype)
    monkeypatch.setattr(own.model.encoder_layers[0].feed_forward, "__class__", Doubling)
    with pytest.raises(tt.BadInput, match="feed_forward: expected .* what FeedForward does, .* got Doubling"):
        save(own, tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.program
def test_a_check_compares_ids_and_logits(own, tokenizer, tmp_path, monkeypatch):
    """A checkpoint of another model, and a tag that `transformers` takes for a language's code."""
    tagged = tt.Tokenizer.train_from_iterator(["a red door", "two doors"] * 60, 270, user_defined_symbols=[">>de<<"])
    other = tt.Translator(tt.Transformer(config(vocab_size=270)), tagged)
    with pytest.raises(tt.BadInput, match="'>>de<<.*: expected the ids .*, got a checkpoint that returns"):
        save(other, tmp_path / "tagged", checked=True)
    store, scale = numpy.save_file, np.float32(1.1)
    scaled = lambda tensors, *options: store({name: tensors[name] * scale for name in tensors}, *options)  # noqa: E731
    monkeypatch.setattr(numpy, "save_file", scaled)
    with pytest.raises(tt.BadInput, match="logits: expected those of the model, got a checkpoint whose logits differ"):
        save(own, tmp_path / "scaled", checked=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.program
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_16_bits(dtype, own, tmp_path):
    """By argument, or by the model's dtype."""
    save(own, tmp_path / "argument", dtype, checked=True)
    save(own.astype(dtype), tmp_path / "own")
    tensors, same = (numpy.load_file(tmp_path / name / "model.safetensors") for name in ("argument", "own"))
    for name, tensor in tensors.items():
        assert tensor.dtype.name == dtype == settings_in(tmp_path / "argument", "config.json")["dtype"]
        np.testing.assert_array_equal(tensor, same[name], name)


def test_the_card_has_the_metadata(own, tmp_path):
    metadata = {"license": "mit", "origin": "somebody/small", "source_language": "en", "target_language": "de"}
    save(
        own.replace(export_options=metadata), tmp_path / "name/7", step=29, bleu=39.2, bleu_signature="nrefs:1|tok:13a"
    )
    text = (tmp_path / "name/7/README.md").read_text(encoding="utf-8")
    head, body = text.removeprefix("---\n").split("---\n", 1)
    assert 'language: ["de", "en"]\nlicense: "mit"\nbase_model: "somebody/small"\n' in head
    assert "# name\n" in body and "translates from en to de: 2 + 2 layers, d_model=14, vocab_size=350." in body
    for row in ("origin | somebody/small", "step | 29", "bleu | 39.2", r"bleu_signature | nrefs:1\|tok:13a"):
        assert f"| {row} |" in body
    again = tt.Translator.from_pretrained(tmp_path / "name/7").export_options
    assert {**again, "origin": ""} == {**metadata, "origin": "", "languages": "de, en", "max_length": 306}


@pytest.mark.program
def test_the_card_of_a_model_of_several_languages(read, tmp_path):
    save(read["m2m100"], tmp_path / "many", source_language="de", target_language="en")
    text = (tmp_path / "many/README.md").read_text(encoding="utf-8")
    assert "between 100 languages" in text and 'src_lang="de")' in text and 'convert_tokens_to_ids("__en__")' in text
    assert tt.Translator.from_pretrained(tmp_path / "many").tokenizer.current_languages() == ("de", "en")


@pytest.mark.program
def test_the_program(tmp_path, capsys, monkeypatch):
    scored, dev = {}, [tmp_path / "dev.en", tmp_path / "dev.de"]
    monkeypatch.setattr("trainers.publishing.scores_of", lambda kind, dev, learned, name: scored.update(learned) or {})
    for file in dev:
        file.write_text("Two doors.\n")
    argv = ["--pretrained", f"{M2M100}/", "--base", str(tmp_path), "--format", "transformers", "--dtype", "float16"]
    export.main([*argv, "--languages", "en", "de", "--license", "cc-by-4.0", "--dev", *map(str, dev)])
    exact, rounded = (scored[dtype].model for dtype in ("float32", "float16"))
    for weight, other in zip(exact.weights, rounded.weights, strict=True):  # Both compute in float32.
        np.testing.assert_array_equal(array(weight).astype("float16").astype("float32"), other, strict=True)
    assert f"published {tmp_path / 'trained/1'}: a checkpoint for `transformers`, float16" in capsys.readouterr().out
    assert tt.load(tmp_path / "trained/1").tokenizer.current_languages() == ("en", "de")
    assert '\nlicense: "cc-by-4.0"\n' in (tmp_path / "trained/1/README.md").read_text(encoding="utf-8")
