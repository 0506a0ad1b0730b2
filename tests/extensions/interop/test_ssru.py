"""Compares models of Marian with an SSRU decoder with NumPy, written from Kim et al. 2019 and Marian's options."""

import functools
import io
import json

import keras
import numpy as np
import pytest
import sentencepiece
from conftest import array
from promises import tensorflow_only

import tf_transformer as tt
from tf_transformer.decoding.decoder import decoder_of
from tf_transformer.extensions.interop.families.marian.family import OPTIONS
from tf_transformer.extensions.interop.families.marian.ssru import SSRU, SSRUConfig, SSRUTransformer
from tf_transformer.tokenizers.tokenizer import EOS_ID, FIRST_ID, UNKNOWN_ID

pytest.importorskip("yaml")
D, HEADS, V, TARGET_V = 8, 2, 34, 31
TEXTS = ["two dogs sleep", "the man opens a green door and reads while one small dog sleeps"]
WORDS = [*TEXTS[0].split(), *TEXTS[1].split(), "house", "red", "in", "Das", "Die"]
BASE = {
    **{"type": "transformer", "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "dim-emb": D, "enc-depth": 2},
    **{"dec-depth": 2, "transformer-heads": HEADS, "transformer-dim-ffn": 12, "tied-embeddings-all": True},
    **{"transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "layer-normalization": False},
    **{"transformer-guided-alignment-layer": "last", "dim-vocabs": [V, V], "transformer-ffn-activation": "relu"},
}
BEFORE = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
UNTIED = {"tied-embeddings-all": False, "transformer-preprocess": "nd", "transformer-postprocess": "an"}
SEPARATE = {"tied-embeddings-all": False, "tied-embeddings": True, "dim-vocabs": [V, TARGET_V]}
DEPTHS = {"transformer-ffn-depth": 3, "transformer-decoder-ffn-depth": 1, "dec-depth": 1}
VARIANTS = {
    "firefox": {},
    "before": BEFORE | {"transformer-ffn-activation": "swish"},
    "untied": UNTIED,
    "source": {"tied-embeddings-all": False, "tied-embeddings-src": True, "transformer-decoder-dim-ffn": 6},
    "separate": SEPARATE | DEPTHS,
}


@functools.cache
def vocabulary(size):
    """Trains SentencePiece as Marian does: </s> is 0, <unk> 1."""
    model, random = io.BytesIO(), np.random.default_rng(0)
    lines = iter([" ".join(random.choice(WORDS, 6)) for _ in range(40)])
    ids = {"bos_id": -1, "eos_id": 0, "unk_id": 1, "pad_id": -1, "minloglevel": 2}
    options = {"sentence_iterator": lines, "model_writer": model, "vocab_size": size} | ids
    sentencepiece.SentencePieceTrainer.train(**options)
    return model.getvalue()


def weights_of(options):
    """Returns random weights by Marian's names."""
    random, weights = np.random.default_rng(5), {}

    def add(name, *shape, scale=0.5):
        weights[name] = random.normal(0, scale, shape).astype("float32")

    def norms(before, after):
        for where, prefix, suffix in (("pre", before, "_pre"), ("post", after, "")):
            if "n" in options.get(f"transformer-{where}process", ""):
                add(f"{prefix}_ln_scale{suffix}", 1, D)
                add(f"{prefix}_ln_bias{suffix}", 1, D)

    depths = {"encoder": int(options.get("transformer-ffn-depth", 2))}
    depths["decoder"] = int(options.get("transformer-decoder-ffn-depth", 0)) or depths["encoder"]
    widths = {"encoder": options["transformer-dim-ffn"]}
    widths["decoder"] = options.get("transformer-decoder-dim-ffn", 0) or widths["encoder"]
    for side, layers in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for start in (f"{side}_l{i + 1}" for i in range(layers)):
            for part in ["self"] if side == "encoder" else ["context"]:
                for letter in "qkvo":
                    add(f"{start}_{part}_W{letter}", D, D)
                    add(f"{start}_{part}_b{letter}", 1, D)
                norms(f"{start}_{part}_Wo", f"{start}_{part}_Wo")
            if side == "decoder":
                for name in ("W", "Wf"):
                    add(f"{start}_rnn_{name}", D, D)
                add(f"{start}_rnn_bf", 1, D)
                norms(f"{start}_rnn", f"{start}_rnn_ffn")
            sizes = [D, *[widths[side]] * (depths[side] - 1), D]
            for k in range(1, len(sizes)):
                add(f"{start}_ffn_W{k}", sizes[k - 1], sizes[k])
                add(f"{start}_ffn_b{k}", 1, sizes[k])
            norms(f"{start}_ffn_ffn", f"{start}_ffn_ffn")
        if options.get("transformer-postprocess-top"):
            add(f"{side}_top_ln_scale", 1, D)
            add(f"{side}_top_ln_bias", 1, D)
    sizes = options["dim-vocabs"]
    if options.get("tied-embeddings-all") or options.get("tied-embeddings-src"):
        add("Wemb", sizes[0], D)
    else:
        add("encoder_Wemb", sizes[0], D)
        add("decoder_Wemb", sizes[1], D)
    if not options.get("tied-embeddings-all") and not options.get("tied-embeddings"):
        add("decoder_ff_logit_out_Wt", sizes[1], D)
    add("decoder_ff_logit_out_b", 1, sizes[1])
    return weights


def write(folder, more=(), weights=None):
    options = BASE | dict(more)
    folder.mkdir(parents=True)
    weights = weights_of(options) if weights is None else weights
    # JSON is YAML.
    content = np.frombuffer(json.dumps(options).encode() + b"\0", np.int8)
    with (folder / "model.npz").open("wb") as file:
        np.savez(file, **weights, **{OPTIONS: content})
    sizes = options["dim-vocabs"]
    names = ["vocab.spm"] * 2 if sizes[0] == sizes[1] else ["source.spm", "target.spm"]
    for name, size in zip(names, sizes, strict=True):
        (folder / name).write_bytes(vocabulary(size))
    decoder = {"models": ["/elsewhere/model.npz"], "vocabs": [f"/elsewhere/{name}" for name in names], "beam-size": 2}
    (folder / "model.npz.decoder.yml").write_text(json.dumps(decoder))
    (folder / "model.iter9.npz.decoder.yml").write_text("{}")  # Marian writes one for each checkpoint.
    return options, weights


def logits_of(options, weights, source, target):
    """Computes logits [T, V] in float64, for Marian's ids of a source with EOS and of a target without its start."""
    weights = {name: value.astype("float64") for name, value in weights.items()}

    def softmax(x):
        exp = np.exp(x - x.max(-1, keepdims=True))
        return exp / exp.sum(-1, keepdims=True)

    def norm(x, prefix, suffix=""):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * weights[f"{prefix}_ln_scale{suffix}"] + weights[f"{prefix}_ln_bias{suffix}"]

    def sublayer(x, before, after, function):
        inputs, y = x, None
        for operation in options.get("transformer-preprocess", ""):
            inputs = norm(inputs, before, "_pre") if operation == "n" else inputs
        y = function(inputs)
        for operation in options["transformer-postprocess"]:
            y = {"d": lambda y: y, "a": lambda y: y + x, "n": lambda y: norm(y, after)}[operation](y)
        return y

    def attend(x, memory, prefix):
        q, k, v = (
            np.stack(np.split(part @ weights[f"{prefix}_W{letter}"] + weights[f"{prefix}_b{letter}"], HEADS, axis=-1))
            for letter, part in (("q", x), ("k", memory), ("v", memory))
        )
        heads = softmax(q @ k.swapaxes(1, 2) / np.sqrt(D / HEADS)) @ v
        return np.concatenate(list(heads), -1) @ weights[f"{prefix}_Wo"] + weights[f"{prefix}_bo"]

    def ssru(x, prefix):
        state, outputs = np.zeros(D), []
        for row in x:
            forget = 1 / (1 + np.exp(-(row @ weights[f"{prefix}_Wf"] + weights[f"{prefix}_bf"][0])))
            state = forget * state + (1 - forget) * (row @ weights[f"{prefix}_W"])
            outputs.append(np.maximum(state, 0))
        return np.array(outputs)

    def feed_forward(x, prefix):
        depth = sum(name.startswith(f"{prefix}_W") for name in weights)
        for k in range(1, depth + 1):
            x = x @ weights[f"{prefix}_W{k}"] + weights[f"{prefix}_b{k}"]
            if k < depth:
                x = np.maximum(x, 0) if options["transformer-ffn-activation"] == "relu" else x / (1 + np.exp(-x))
        return x

    def embed(rows):
        angles = np.arange(len(rows))[:, None] * 10_000.0 ** (-np.arange(D // 2) / (D // 2 - 1))
        return rows * np.sqrt(D) + np.concatenate([np.sin(angles), np.cos(angles)], -1)

    tables = {side: weights.get("Wemb", weights.get(f"{side}_Wemb")) for side in ("encoder", "decoder")}
    x = embed(tables["encoder"][source])
    top = options.get("transformer-postprocess-top")
    for start in (f"encoder_l{i + 1}" for i in range(options["enc-depth"])):
        name = f"{start}_self"
        x = sublayer(x, f"{name}_Wo", f"{name}_Wo", lambda y, name=name: attend(y, y, name))
        x = sublayer(x, f"{start}_ffn_ffn", f"{start}_ffn_ffn", lambda y, start=start: feed_forward(y, f"{start}_ffn"))
    memory = norm(x, "encoder_top") if top else x
    x = embed(np.concatenate([np.zeros((1, D)), tables["decoder"][target]]))
    for start in (f"decoder_l{i + 1}" for i in range(options["dec-depth"])):
        x = sublayer(x, f"{start}_rnn", f"{start}_rnn_ffn", lambda y, start=start: ssru(y, f"{start}_rnn"))
        name = f"{start}_context"
        x = sublayer(x, f"{name}_Wo", f"{name}_Wo", lambda y, name=name: attend(y, memory, name))
        x = sublayer(x, f"{start}_ffn_ffn", f"{start}_ffn_ffn", lambda y, start=start: feed_forward(y, f"{start}_ffn"))
    x = norm(x, "decoder_top") if top else x
    output = weights.get("decoder_ff_logit_out_Wt", tables["decoder"])
    return x @ output.T + weights["decoder_ff_logit_out_b"]


def greedy(options, weights, source, limit):
    target = []
    for _ in range(limit):
        logits = logits_of(options, weights, source, target)[-1]
        logits[1] = -np.inf  # <unk>
        target.append(int(logits.argmax()))
        if target[-1] == 0:
            break
    return target


def ours(ids):
    """Converts Marian's ids to ours: its order without </s> and <unk>, after our four."""
    return [{0: EOS_ID, 1: UNKNOWN_ID}.get(id, id - 2 + FIRST_ID) for id in ids]


@pytest.fixture(scope="module", params=VARIANTS)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ssru") / "model"
    options, weights = write(folder, VARIANTS[request.param])
    return options, weights, tt.load(folder, beam_size=1, length_penalty=0.0)


def test_logits_are_those_of_the_paper(case):
    options, weights, translator = case
    random = np.random.default_rng(1)
    sources = [[*random.integers(2, V, n), 0] for n in (3, 7)]
    targets = [random.integers(2, options["dim-vocabs"][1], n) for n in (9, 4)]
    source = keras.utils.pad_sequences([ours(ids) for ids in sources], padding="post")
    target = keras.utils.pad_sequences([[1, *ours(ids)] for ids in targets], padding="post")
    logits = array(translator.model((source, target)))
    for row, (ids, more) in enumerate(zip(sources, targets, strict=True)):
        expected = logits_of(options, weights, ids, more)
        columns = ours(range(options["dim-vocabs"][1]))
        np.testing.assert_allclose(logits[row, : len(more) + 1][:, columns], expected, atol=1e-4)


@pytest.mark.parametrize("case", ["separate"], indirect=True)
def test_the_search_is_marians(case):
    """With a cache, in a batch whose rows end at different steps."""
    options, weights, translator = case
    pieces = sentencepiece.SentencePieceProcessor(model_proto=vocabulary(options["dim-vocabs"][0]))
    outputs = translator.replace(extra_length=4).n_best(TEXTS, 1)
    for text, (output, *_) in zip(TEXTS, outputs, strict=True):
        source = [*pieces.encode(text), 0]
        ids = greedy(options, weights, source, len(source) - 1 + 4)
        target = sentencepiece.SentencePieceProcessor(model_proto=vocabulary(options["dim-vocabs"][1]))
        assert output.text == target.decode([id for id in ids if id]).strip()


@pytest.mark.parametrize("case", ["firefox"], indirect=True)
def test_beams_read_their_own_states(case):
    """A beam's log-probability with the cache is that of its whole output."""
    model = case[2].model
    source = np.array([[*ours([5, 9, 4]), EOS_ID], [*ours([8]), EOS_ID, 0, 0]])
    memory, mask, _ = model.encode(source)
    start, limit = (keras.ops.full((2,), n, "int32") for n in (1, 6))
    problem = tt.decoding.SearchProblem(
        decoder_of(model, memory, mask, tt.decoding.FixedShapes(3, 6)), start, limit, EOS_ID
    )
    found = tt.decoding.beam_search(problem, beam_size=3, n_best=3, patience=9.0)
    ids, lengths = array(found.ids), array(found.lengths)
    for beam in range(3):
        target = np.pad(ids[:, beam, :-1], ((0, 0), (1, 0)), constant_values=1)
        logits = array(model((source, target)))
        logits[:, :, [0, 1, UNKNOWN_ID]] = -1e9  # never chosen
        log_probs = array(keras.ops.log_softmax(logits))
        for row in range(2):
            n = lengths[row, beam]
            total = log_probs[row, np.arange(n), ids[row, beam, :n]].sum()
            assert abs(total - array(found.log_probs)[row, beam]) < 1e-3
    assert lengths.min() > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dec-cell", "gru"),
        ("transformer-preprocess", "r"),
        ("transformer-postprocess", "dhn"),
        ("transformer-postprocess-top", "an"),
        ("transformer-ffn-activation", "gelu"),
        ("transformer-rnn-projection", True),
        ("layer-normalization", True),
        ("transformer-disable-position-embeddings", True),
        ("transformer-decoder-autoreg", "average-attention"),
    ],
)
def test_other_options_are_refused(name, value, tmp_path):
    write(tmp_path / "model", {name: value}, weights={})
    with pytest.raises(tt.BadInput, match=f"{name}: expected .*, got '{str(value).lower()}'") as raised:
        tt.load(tmp_path / "model")
    assert "\n" not in str(raised.value)


def test_files_that_do_not_fit(tmp_path):
    _, weights = write(tmp_path / "model")
    del weights["decoder_l2_rnn_Wf"]
    write(tmp_path / "less", weights=weights)
    with pytest.raises(tt.BadInput, match="expected a tensor decoder_l2_rnn_Wf, found none"):
        tt.load(tmp_path / "less")
    (tmp_path / "model" / "vocab.spm").write_bytes(b"no")
    with pytest.raises(tt.BadInput, match="vocab.spm: expected a SentencePiece model"):
        tt.load(tmp_path / "model")


def test_a_padded_target_and_a_long_one():
    """Padding leaves the state, whatever its position. A scan of doublings is the sum that a loop computes."""
    layer, x = SSRU(), np.random.default_rng(2).normal(size=(2, 37, 6)).astype("float32")
    mask = np.random.default_rng(3).random((2, 37)) < 0.7
    outputs, whole = array(layer(x, mask=mask)), array(layer(x))
    for row in range(2):
        np.testing.assert_allclose(outputs[row][mask[row]], array(layer(x[row : row + 1, mask[row]]))[0], atol=1e-5)
    np.testing.assert_allclose(whole[:, :20], array(layer(x[:, :20])), atol=1e-5)


@tensorflow_only
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", ["firefox"], indirect=True)
def test_a_search_in_16_bits_keeps_states_in_32(case, dtype):
    translator = case[2].astype(dtype)
    layer, memory = translator.model.decoder_layers[0], translator.model.encode(np.array([[5, 6, 2]]))[0]
    x = np.random.default_rng(5).normal(size=(1, 1, memory.shape[-1]))
    _, cache = layer(keras.ops.cast(x, dtype), cache=layer.init_cache(memory, 1))
    state = array(cache.target.key)
    assert state.dtype == np.float32 and (state != array(keras.ops.cast(keras.ops.cast(state, dtype), "float32"))).any()
    assert translator(TEXTS) == [translator(text) for text in TEXTS]


@pytest.mark.parametrize("case", ["firefox"], indirect=True)
def test_formats_of_others_are_refused(case, tmp_path):
    for format in ("transformers", "ctranslate2"):
        pytest.importorskip({"transformers": "safetensors"}.get(format, format))
        with pytest.raises(tt.BadInput, match="ssru") as raised:
            case[2].save(tmp_path / format, format=format)
        assert "\n" not in str(raised.value)


def test_size_of_a_configuration():
    """The count of matrices is that of the model, so a damaged file is found before memory is allocated."""
    sizes = {"num_layers": 2, "num_decoder_layers": 3, "d_model": 8, "d_ff": 12, "decoder_d_ff": 6, "num_heads": 2}
    for more in ({}, {"ffn_depth": 1, "decoder_ffn_depth": 4, "tied_output": False, "source_vocab_size": 11}):
        config = SSRUConfig(**sizes, num_decoder_heads=2, vocab_size=20, **more)
        model = SSRUTransformer(config)
        model.build()
        assert config.matrix_weights == sum(
            weight.shape[0] * weight.shape[1] for weight in model.weights if len(weight.shape) == 2
        )


@tensorflow_only
def test_a_row_of_zeros_has_no_scale_above_the_others(tmp_path):
    """BOS is a row of zeros. LiteRT's converter rounds scales to 8 bits of the largest."""
    from tf_transformer.extensions.interop.formats.litert import _Module

    write(tmp_path / "model")
    translator = tt.load(tmp_path / "model")
    _Module(translator, rounded=True, max_length=9)
    scales = array(translator.model.embedding.embeddings_scale)
    assert scales.max() == scales[EOS_ID:].max() < 1e4
