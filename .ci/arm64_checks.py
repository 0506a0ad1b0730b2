"""What .ci/arm64 computes on both machines, and the table of both.

`make FOLDER` trains a model and exports it. `CHECK FOLDER MACHINE` writes the rows of a check as they come, to
FOLDER/MACHINE/CHECK.jsonl. `table FOLDER MACHINE CHECK...` compares them with those of x86_64, and exits with 1 if a
row is missing or differs by more than it may.
"""

import dataclasses
import hashlib
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXTS = int(os.environ.get("TEXTS", "10"))
LEAST = 0.8  # least share of outputs in 8 bits that equal those in float32
DTYPES = "float32", "int8"
SEARCH = {"beam_size": 4, "max_source_length": 64}


def make(folder):
    """Trains on the toy corpus, in matrices large enough for 8 bits, and writes what the checks open."""
    import keras
    import numpy as np

    import tf_transformer as tt

    unfinished = folder / "unfinished"
    if not (folder / "run").exists() or unfinished.exists():
        unfinished.touch()
        corpus = tt.ToyCorpus()
        config = dataclasses.replace(tt.PRESETS["small"], num_layers=2, dropout=0.1, vocab_size=1_000)
        tt.Trainer(folder / "run", config, corpus, tt.RECIPES["tiny"]).fit()
        unfinished.unlink()
    if not (folder / "texts.json").is_file():
        texts = [english for english, _ in tt.toy_corpus.corpus()["test"]]
        (folder / "texts.json").write_text(json.dumps(texts))
    models = {"run": tt.load(folder / "run", **SEARCH)}
    models["marian"] = tt.Translator.from_pretrained(ROOT / "tests/marian/trained", **SEARCH)
    for name, translator in models.items():
        for format in ("savedmodel", "litert", "onnx", "ctranslate2"):
            # The matrices of the small MarianMT are too small for 8 bits.
            for dtype in DTYPES if name == "run" else DTYPES[:1]:
                path = folder / "exports" / f"{name}-{format}-{dtype}" / "1"
                if not path.exists():
                    translator.save(path, format=format, **({"dtype": dtype} if dtype == "int8" else {}))
    keras.utils.set_random_seed(1)
    ids = keras.Input((None,), dtype="int32")
    x = tt.layers.PositionalEmbedding(vocab_size=500, d_model=32)(ids)
    for _ in range(2):
        x = tt.layers.EncoderLayer(num_heads=4, d_ff=64)(x)
    classifier = keras.Model(ids, keras.layers.Dense(3, activation="softmax")(keras.layers.GlobalAveragePooling1D()(x)))
    classifier.save(folder / "classifier.keras")
    model = transformer()
    np.savez(folder / "initial.npz", *[keras.ops.convert_to_numpy(weight) for weight in model.weights])
    write_products(folder / "products")


def transformer():
    import tf_transformer as tt

    model = tt.Transformer(tt.TransformerConfig(2, 64, 128, 4, dropout=0.0, vocab_size=100))
    model.build()
    return model


def write_products(folder):
    """Writes ONNX files of one product each, of unsigned or signed rows by signed weights."""
    from onnx import TensorProto, helper, save

    folder.mkdir(exist_ok=True)
    for name, dtype in (("uint8", TensorProto.UINT8), ("int8", TensorProto.INT8)):
        ports = [("a", dtype), ("b", TensorProto.INT8)]
        inputs = [helper.make_tensor_value_info(port, kind, [None, None]) for port, kind in ports]
        output = helper.make_tensor_value_info("sums", TensorProto.INT32, [None, None])
        node = helper.make_node("MatMulInteger", ["a", "b"], ["sums"])
        graph = helper.make_graph([node], "product", inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        save(model, folder / f"{name}.onnx")


def factors(dtype):
    """Yields matrices whose sums of products 16 bits cannot hold, and random ones."""
    import numpy as np

    draw = np.random.default_rng(0)
    least, most = (0, 255) if dtype == "uint8" else (-127, 127)
    signs = np.where(np.arange(512) % 2, most, least)
    for rows in (np.full((3, 512), most), np.tile(signs, (3, 1)), draw.integers(least, most + 1, (3, 512))):
        for sign in (1, -1):
            yield rows.astype(dtype), np.full((512, 64), 127 * sign, "int8")
        yield rows.astype(dtype), draw.integers(-127, 128, (512, 64)).astype("int8")


def wrong_sums(product, dtype):
    """Returns how many sums of products differ from NumPy's in 64 bits."""
    import numpy as np

    pairs = list(factors(dtype))
    wrong = sum(int((np.rint(product(a, b)) != a.astype("int64") @ b.astype("int64")).sum()) for a, b in pairs)
    return {"wrong": wrong, "of": sum(a.shape[0] * b.shape[1] for a, b in pairs)}


def texts_of(folder, name="run"):
    texts = json.loads((folder / "texts.json").read_text())
    return [text for text in texts if name == "run" or len(text.split()) <= 6][:TEXTS]


def outputs(translator, texts):
    best = [hypotheses[0] for hypotheses in translator.n_best(texts, 1)]
    return {"texts": [one.text for one in best], "scores": [one.score for one in best]}


def largest(array):
    return [float(value) for value in array.ravel()]


def tensorflow(folder, machine):
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_transformer as tt

    yield "import", {"same": [tf.__version__, keras.__version__]}
    yield "products of TensorFlow, int8 by int8", wrong_sums(onednn_sums, "int8")
    for name in ("run", "marian"):
        path = folder / "run" if name == "run" else ROOT / "tests/marian/trained"
        tokenizer = tt.load(path).tokenizer
        texts = json.loads((folder / "texts.json").read_text())[:200]
        hostile = [
            "",
            "   ",
            "e\u0301\ufb01 \u6771\u4eac \U0001f600",
            "a\tb\nc\u00a0d\u3000e",
            ">>eng<< x",
            "</s> <pad> <unk>",
        ]
        yield (
            f"ids of the tokenizer, {name}",
            {"same": [[*map(int, row)] for row in tokenizer.encode([*texts, *hostile])]},
        )
    for name in ("run", "marian"):
        for dtype in DTYPES if name == "run" else DTYPES[:1]:
            engine = tt.load(folder / "exports" / f"{name}-savedmodel-{dtype}")
            yield f"SavedModel, {name}, {dtype}", outputs(engine, texts_of(folder, name))
    classifier = keras.models.load_model(folder / "classifier.keras")
    ids = np.random.default_rng(0).integers(1, 500, (8, 12))
    yield "classifier, probabilities", {"numbers": largest(np.asarray(classifier(ids))), "most": 1e-6}
    yield from fit(folder, machine, 3)


def saved(folder, machine):
    import numpy as np
    import tensorflow as tf

    import tf_transformer as tt

    translator = tt.load(folder / "run", **SEARCH)
    for dtype in DTYPES:
        path = folder / machine / "saved" / dtype / "1"
        if not path.exists():
            translator.save(path, **({"dtype": dtype} if dtype == "int8" else {}))
        stored = tf.train.load_checkpoint(str(path / "variables" / "variables"))
        weights = sorted(name for name in stored.get_variable_to_shape_map() if name.startswith("weights/"))
        hashes = [hashlib.sha256(np.asarray(stored.get_tensor(name)).tobytes()).hexdigest() for name in weights]
        yield f"weights of a saved SavedModel, {dtype}", {"same": hashes}


def onednn_sums(a, b):
    """Multiplies by the operation of an int8 SavedModel, with scales of 1."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_library

    @tf.function(autograph=False)
    def product(a, b):
        largest = tf.fill([b.shape[1]], 127.0)
        (sums,), _ = op_def_library.apply_op(
            "_QuantizedMatMul",
            name="product",
            device_inputs=[tf.bitcast(a, tf.qint8), tf.bitcast(b, tf.qint8), tf.zeros([b.shape[1]])],
            host_inputs=[tf.constant(-127.0), tf.constant(127.0), largest, largest],
            fused_ops=["BiasAdd", "Dequantize"],
            input_quant_mode="SCALED",
            output_quant_mode="SCALED",
            # Constant weights are kept from the first call.
            **dict.fromkeys(("transpose_a", "transpose_b", "is_weight_const", "is_bias_const"), False),
            leakyrelu_alpha=0.0,
            **dict.fromkeys(("T1", "T2"), tf.qint8),
            **dict.fromkeys(("Tbias", "U", "Tout"), tf.float32),
            Tdevice_outputs=[tf.float32],
            Thost_outputs=[],
        )
        return sums

    return product(tf.constant(a), tf.constant(b)).numpy().astype("float64")


def fit(folder, machine, steps):
    """Trains from the same weights. Adam's steps have the size of the rate, 1e-3, also where a gradient is rounding."""
    import keras
    import numpy as np

    import tf_transformer as tt

    model = transformer()
    with np.load(folder / "initial.npz") as initial:
        model.set_weights([initial[name] for name in initial.files])
    model.compile(keras.optimizers.Adam(1e-3, beta_2=0.98, epsilon=1e-9), loss=tt.SmoothedCrossEntropy(0.1))
    draw, losses = np.random.default_rng(0), []
    for _ in range(steps):
        source, target = draw.integers(3, 100, (8, 9)), draw.integers(3, 100, (8, 10))
        losses.append(float(model.train_on_batch((source, target[:, :-1]), target[:, 1:])))
    yield f"losses of {steps} steps", {"numbers": losses, "most": 1e-5}
    weights = np.concatenate([keras.ops.convert_to_numpy(weight).ravel() for weight in model.weights])
    name = f"{machine}/weights-{keras.backend.backend()}.npy"
    np.save(folder / name, weights)
    yield f"weights after {steps} steps", {"file": name, "most": 1e-4}


def jax(folder, machine):
    import keras

    import tf_transformer as tt

    assert keras.backend.backend() == "jax"
    yield from fit(folder, machine, 1)
    yield "run, float32, on JAX", outputs(tt.load(folder / "run", **SEARCH), texts_of(folder)[:2])


def opened(folder, machine):
    """Opens what `saved` saved on a machine. It always runs on x86-64."""
    import tf_transformer as tt

    for dtype in DTYPES:
        engine = tt.load(folder / machine / "saved" / dtype)
        yield f"SavedModel, saved on each, opened on x86-64, {dtype}", outputs(engine, texts_of(folder))


def clients(format):
    def check(folder, machine):
        from tf_transformer.extensions.interop.engines import litert_client

        for name in ("run", "marian"):
            for dtype in DTYPES if name == "run" else DTYPES[:1]:
                engine, texts = (
                    litert_client.opened(folder / "exports" / f"{name}-{format}-{dtype}"),
                    texts_of(folder, name),
                )
                yield (
                    f"ids by SentencePiece, {name}, {format} {dtype}",
                    {"same": [engine.source_ids(text) for text in texts]},
                )
                yield f"{format}, {name}, {dtype}", outputs(engine, texts)

    return check


def onnx(folder, machine):
    import onnxruntime

    for dtype in ("uint8", "int8"):
        session = onnxruntime.InferenceSession(str(folder / "products" / f"{dtype}.onnx"))
        product = lambda a, b, session=session: session.run(None, {"a": a, "b": b})[0]  # noqa: E731
        yield f"products of onnxruntime, {dtype} by int8", wrong_sums(product, dtype)
    yield from clients("onnx")(folder, machine)


def ctranslate2(folder, machine):
    import ctranslate2
    import sentencepiece

    for dtype in DTYPES:
        path = folder / "exports" / f"run-ctranslate2-{dtype}" / "1"
        engine = ctranslate2.Translator(str(path), intra_threads=1, inter_threads=1)
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))
        results = [
            engine.translate_batch([pieces.encode(text, out_type=str)], beam_size=4, return_scores=True)[0]
            for text in texts_of(folder)
        ]
        texts = [pieces.decode(result.hypotheses[0]) for result in results]
        yield f"CTranslate2, run, {dtype}", {"texts": texts, "scores": [result.scores[0] for result in results]}


def check(folder, machine):
    """`tf-transformer check`, whose processes are emulated, too."""
    from tf_transformer.extensions.conformance import check as module

    sys.executable = os.environ.get("EMULATED_PYTHON", sys.executable)
    module.PROBE_SECONDS = 36_000
    for format in ("litert", "onnx", "savedmodel"):
        findings = module.check(folder / "exports" / f"run-{format}-int8" / "1")
        print(*findings, sep="\n", file=sys.stderr)
        yield f"tf-transformer check, {format}, int8", {"failed": [one.message for one in module.failures(findings)]}


CHECKS = {"litert": clients("litert"), "onnx": onnx, "ctranslate2": ctranslate2, "tensorflow": tensorflow}
CHECKS |= {"saved": saved, "opened": opened, "jax": jax, "check": check}


def rows_of(folder, machine, name):
    file = folder / machine / f"{name}.jsonl"
    return dict(map(json.loads, file.read_text().splitlines())) if file.is_file() else {}


def compared(folder, name, here, there, floats):
    """Returns whether a row is right on the other machine, and a line about it."""
    import numpy as np

    if there is None:
        return False, "missing"
    if "same" in here:
        equal = sum(one == other for one, other in zip(here["same"], there["same"], strict=True))
        return equal == len(here["same"]), f"{equal} of {len(here['same'])} equal"
    if "wrong" in here:
        return not there["wrong"], f"{there['wrong']} of {there['of']} sums wrong (x86-64: {here['wrong']})"
    if "failed" in here:
        return not there["failed"], "; ".join(there["failed"]) or f"nothing fails (x86-64: {len(here['failed'])} fail)"
    if "most" in here:
        one, other = (
            np.load(folder / row["file"]) if "file" in row else np.array(row["numbers"]) for row in (here, there)
        )
        difference = np.abs(one - other).max()
        return bool(difference <= here["most"]), f"largest difference {difference:.1e} (at most {here['most']:.0e})"
    count = len(here["texts"])
    equal = sum(one == other for one, other in zip(here["texts"], there["texts"], strict=True))
    difference = np.abs(np.subtract(here["scores"], there["scores"])).max()
    line = f"{equal} of {count} equal, scores within {difference:.1e}"
    if floats is None:
        return equal == count, line
    as_float = [
        sum(map(str.__eq__, row["texts"], base["texts"])) for row, base in zip((there, here), floats, strict=True)
    ]
    return as_float[0] >= LEAST * count, f"{line}; as float32: {as_float[0]} (x86-64: {as_float[1]})"


def table(folder, machine, names):
    right = True
    print(f"| check | {machine} beside x86-64 | |\n|---|---|---|")
    for name in names:
        here, there = rows_of(folder, "x86_64", name), rows_of(folder, machine, name)
        if not here:
            right = False
            print(f"| {name} | no numbers of x86-64 | **FAIL** |")
        for row, value in here.items():
            floats = None
            if row.endswith(", int8") and "texts" in value and row in there:
                base = row.removesuffix("int8") + "float32"
                floats = there[base], here[base]
            passed, line = compared(folder, row, value, there.get(row), floats)
            right &= passed
            print(f"| {row} | {line} | {'ok' if passed else '**FAIL**'} |")
    sys.exit(not right)


def main(command, folder, machine="", *names):
    folder = Path(folder)
    if command == "make":
        make(folder)
    elif command == "table":
        table(folder, machine, names)
    else:
        file = folder / machine / f"{command}.jsonl"
        file.parent.mkdir(exist_ok=True)
        began = time.time()
        with file.open("w") as lines:
            for name, value in CHECKS[command](folder, machine):
                print(f"{machine}: {time.time() - began:6.0f} s: {name}", flush=True)
                lines.write(json.dumps([name, value]) + "\n")
                lines.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
