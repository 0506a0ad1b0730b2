"""Measures translation with an exported SavedModel, strings in and strings out: output tokens/s, memory per request."""

import hashlib
import multiprocessing
import os
import shutil
import sys
import time
from pathlib import Path

from benchmarks import common
from benchmarks.training import model_of

ROOT = Path(__file__).parents[1]


def main(argv=None) -> dict:
    parser = common.parser("translation", __doc__, common.SERVED_DTYPES)
    common.add_translation(parser)
    add = parser.add_argument
    add("--inter-threads", type=int, default=1, help="operations at a time (1)")
    add(
        "--loader",
        default="python",
        choices=["python", "c", "keras"],
        help="tf.saved_model.load, TensorFlow's C API, or no export: a Translator on Keras's backend (python)",
    )
    common.add_work_folder(parser)
    args = parser.parse_args(argv)
    work = common.WORKS[args.config]

    if args.loader == "keras":
        return translate_in_keras(work, args)
    path = exported(work, args.dtype, args.work)
    sentences = source_sentences(work, args.sentences, args.work)
    load = {"python": load_in_python, "c": load_in_c}[args.loader]
    began = time.perf_counter()
    signature = load(path, args)
    loading = time.perf_counter() - began

    def request():
        return signature("serving_default", text=sentences)["translation"]

    clock = common.timed(request, args.repeats, args.warmup)
    # TensorFlow keeps freed memory, and only its Python API counts it.
    memory = {"request_mib": round(common.request_mib(request), 1)} if args.loader == "python" else {}
    check(signature, sentences, work)
    return common.report(
        "translation",
        "tf_transformer",
        args,
        clock,
        args.sentences * work.steps,
        ["tf-transformer", "tensorflow", "tensorflow-text"],
        loader=args.loader,
        sentences=args.sentences,
        load_seconds=round(loading, 2),
        saved_mib=round(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) / 2**20, 1),
        **memory,
    )


def translate_in_keras(work, args) -> dict:
    common.prepare(args)
    import keras

    backend = keras.backend.backend()
    if backend == "tensorflow":
        common.prepare_tensorflow(args, args.inter_threads)
    translator = random_translator(work, args.dtype, args.work, batch_size=args.sentences)
    sentences = list(source_sentences(work, args.sentences, args.work))
    clock = common.timed(lambda: translator(sentences, max_length=work.steps), args.repeats, args.warmup)
    lengths = {reply.hypotheses[0].length for reply in translator.replies(sentences, 1, max_length=work.steps)}
    if lengths != {work.steps}:
        raise AssertionError(f"expected {work.steps} steps in all translations, got {lengths}")
    rate = args.sentences * work.steps
    return common.report("translation", common.OURS, args, clock, rate, ["keras", backend], sentences=args.sentences)


def check(signature, sentences, work) -> None:
    """Checks that a request has the work's number of tokens and of steps, and that no output ended."""
    outputs = signature("translate", text=sentences)
    for name, expected in (("source_length", work.source_length), ("lengths", work.steps), ("finished", 0)):
        if not (outputs[name][..., : work.beam_size] == expected).all():
            raise AssertionError(f"expected {name}={expected} in all translations, got {outputs[name]}")


# Exports


def exported(work, dtype, folder: Path, max_length: int | None = None, kind: str = "savedmodel") -> Path:
    """Exports a random model that never ends a sentence, once for this state of the code. Returns the export's path.

    Args:
        work: Sizes of the model.
        dtype: Dtype of computations.
        folder: Directory of all exports.
        max_length: Maximum steps of a request's search. Defaults to those of the work.
        kind: "savedmodel", or "ctranslate2" or "litert" for that engine's export of the same weights. With MarianMT's
            layers also "marian", the checkpoint that all are made from.
    """
    max_length = max_length or work.steps
    sources = [*sorted(ROOT.glob("tf_transformer/**/*.py")), Path(__file__)]
    made_from = hashlib.sha256(repr(work).encode() + b"".join(source.read_bytes() for source in sources))
    stem = f"{kind}-{work.vocab_size}-{work.d_model}-{dtype}-{max_length}-"
    path = folder / (stem + made_from.hexdigest()[:12]) / "1"
    if not path.exists():
        for old in folder.glob(stem + "*"):
            shutil.rmtree(old)
        # In another process, so that this one measures only the memory of serving.
        build = (work, dtype, folder, max_length, kind, path)
        process = multiprocessing.get_context("spawn").Process(target=_export, args=build)
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"the export failed with status {process.exitcode}")
    return path


def _export(work, dtype, folder, max_length, kind, path) -> None:
    import tf_transformer as tt
    from tf_transformer.extensions.interop.formats.ctranslate2 import save as save_ctranslate2

    if kind == "marian":
        return random_translator(work, dtype, folder).save(path, format="transformers")
    if work.marian:
        translator = tt.Translator.from_pretrained(exported(work, "float32", folder, kind="marian"), **search_of(work))
        translator = translator if dtype == "float32" or kind == "litert" else translator.astype(dtype)
    else:
        translator = random_translator(work, "float32" if kind == "litert" else dtype, folder)
    if kind == "ctranslate2":
        save_ctranslate2(translator, path)
    elif kind == "litert":
        translator.save(path, format="litert", dtype=dtype, max_length=max_length)
    else:
        translator.save(path, max_length=max_length)


def random_translator(work, dtype, folder: Path, **options):
    """Returns a `Translator` of random weights that never ends a sentence."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    import tf_transformer as tt

    keras.utils.set_random_seed(common.SEED)
    model = model_of(work)
    never_end(model)
    tokenizer = tt.Tokenizer.load(tokenizer_path(work, folder))
    translator = tt.Translator(model, tokenizer, **(options | search_of(work)))
    return translator if dtype == "float32" else translator.astype(dtype)


def search_of(work) -> dict:
    """Returns the search options of a `Translator`."""
    return {"beam_size": work.beam_size, "length_penalty": work.length_penalty}


def never_end(model) -> None:
    """Makes the logit of EOS -d_model at every position, so that its probability is e^-d_model.

    The output of the last layer normalization has the mean 0 before its beta is added. With beta = 1 the logit of an
    embedding of -1s is therefore -d_model. The other logits hardly change, since components are N(0, 1 / d_model).
    """
    from tf_transformer.tokenizers.tokenizer import EOS_ID

    beta = model.decoder_layers[-1].feed_forward_norm.norm.beta
    beta.assign(beta * 0 + 1.0)
    embeddings = model.embedding.embeddings.numpy()
    embeddings[EOS_ID] = -1.0
    model.embedding.embeddings.assign(embeddings)


# Strings


def tokenizer_path(work, folder: Path) -> Path:
    """Trains a SentencePiece model of the work's vocabulary once, on generated text. Returns its path."""
    path = folder / f"vocabulary-{work.vocab_size}.model"
    if not path.exists():
        import tf_transformer as tt

        text = common.generated_text(work.vocab_size, lines=work.vocab_size)
        tt.Tokenizer.train_from_iterator(text, work.vocab_size).save(path)
    return path


def source_sentences(work, count: int, folder: Path) -> list[str]:
    """Returns sentences of exactly `source_length` tokens, of random words that are one token each."""
    import random

    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_path(work, folder)))
    pieces = map(processor.id_to_piece, range(common.FIRST_ID + 256, processor.vocab_size()))
    vocabulary = [piece[1:] for piece in pieces if piece.startswith("▁") and len(piece) > 2]
    chance = random.Random(common.SEED)
    return [" ".join(chance.choices(vocabulary, k=work.source_length)) for _ in range(count)]


# Loaders. Each returns a function (signature, **inputs) -> {name: array}.


def load_in_python(path: Path, args):
    tf = common.prepare_tensorflow(args, args.inter_threads)
    import tensorflow_text  # noqa: F401  (its ops are in the SavedModel)

    model = tf.saved_model.load(str(path))

    def call(name, **inputs):
        function = model.signatures[name] if name == "serving_default" else getattr(model, name)  # has defaults
        outputs = function(**{key: tf.constant(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in outputs.items()}

    return call


def load_in_c(path: Path, args):
    common.prepare(args)
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    os.environ["TF_NUM_INTEROP_THREADS"] = str(args.inter_threads)
    sys.path.insert(
        0, str(ROOT / "tf_transformer" / "extensions" / "conformance")
    )  # no Python of TensorFlow comes along
    import loader

    servable = loader.Servable(path)
    return lambda name, **inputs: servable.predict(inputs, name)


if __name__ == "__main__":
    main()
