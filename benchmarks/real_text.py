"""Sentences/s and BLEU on real text, strings in and strings out: our SavedModel, our exports to LiteRT and ONNX, and
CTranslate2, with the same weights. LiteRT, and ONNX in int8, take one sentence after the other for any batch.

Exports a run once for each engine, starts one process for each, and lets them translate the whole text in turn, so that
other load of the machine affects all of them. Prints one JSON line for each. Processes that wait for their turn are
stopped: unless OMP_WAIT_POLICY is PASSIVE, CTranslate2's threads wait without sleeping, even when idle. `others_cores`
is the number of cores that other processes kept busy. Trust the times only if it is about 0.

Each engine has its search, with the same beams. All end it when as many outputs as beams have ended. Ours divides by
((5 + length) / 6)^length_penalty, CTranslate2 by length^length_penalty.

`identical` is the number of translations that are those of the same engine in float32, if it is among the engines. To
measure the kernels of older processors, set ONEDNN_MAX_CPU_ISA (TensorFlow) and CT2_FORCE_CPU_ISA (CTranslate2).
"""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
from pathlib import Path

from benchmarks import common

PACKAGES = {
    "savedmodel": ("tf-transformer", "tensorflow", "tensorflow-text"),
    "litert": ("ai-edge-litert",),
    "onnx": ("onnxruntime",),
    "ctranslate2": ("ctranslate2",),
}
ENGINES = [f"{engine} {dtype}" for engine in PACKAGES for dtype in ("float32", "int8")]
HALVES = ["savedmodel bfloat16", "savedmodel float16"]
LIMITS = ("ONEDNN_MAX_CPU_ISA", "CT2_FORCE_CPU_ISA")  # variables by which libraries use older instructions


def main(argv=None) -> list[dict]:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.real_text", None, __doc__, formatter_class=formatter)
    add = parser.add_argument
    add("--run", type=Path, required=True, metavar="DIR", help="directory of the run")
    add("--average-last", type=int, default=5, metavar="N", help="average the last N checkpoints (5)")
    add("--source", required=True, metavar="FILE", help="sentences to translate")
    add("--reference", required=True, metavar="FILE", help="their references, for BLEU")
    add("--engines", nargs="+", default=ENGINES, choices=ENGINES + HALVES, metavar="NAME", help=f"{ENGINES + HALVES}")
    add("--beam-size", type=int, default=4, help="(4)")
    add("--length-penalty", type=float, default=0.6, help="exponent of each engine's length penalty (0.6)")
    add("--sentences", type=int, default=32, help="sentences per batch, sorted by length (32)")
    add("--threads", type=int, default=2, help="threads per engine (2)")
    add("--rounds", type=int, default=5, help="timed translations of the text per engine (5)")
    add("--warmup", type=int, default=1, help="untimed translations before (1)")
    args = parser.parse_args(argv)
    common.prepare(args)

    from tf_transformer.evaluation.bleu import bleu
    from tf_transformer.utils.folders import size_of
    from tf_transformer.utils.lines import read_text_pairs

    sources, references = read_text_pairs(args.source, args.reference)
    spawn = multiprocessing.get_context("spawn")  # Each engine has a process.
    with tempfile.TemporaryDirectory() as folder:
        exporter = spawn.Process(target=export, args=(Path(folder), args))
        exporter.start()
        exporter.join()
        if exporter.exitcode:
            raise SystemExit(f"{args.run} could not be exported")
        engines: dict[str, Engine] = {}
        try:
            for name in args.engines:
                engines[name] = Engine(spawn, name, Path(folder), args, sources)
            for round_ in range(args.warmup + args.rounds):
                for engine in engines.values():
                    engine.translate(keep=round_ >= args.warmup)
        finally:
            for engine in engines.values():
                engine.process.kill()  # a stopped process would outlive this one
        lines = []
        for name, engine in engines.items():
            score = bleu(engine.translations, references)
            exact = engines.get(f"{name.split()[0]} float32", engine).translations
            seconds = statistics.median(engine.seconds)
            lines.append(
                {
                    "benchmark": "real_text",
                    "engine": name.split()[0],
                    "dtype": name.split()[1],
                    "sentences": len(sources),
                    "sentences_per_second": round(len(sources) / seconds, 2),
                    "seconds": [round(second, 3) for second in engine.seconds],
                    "others_cores": round(max(engine.others), 2),
                    "bleu": round(score.value, 2),
                    "bleu_signature": score.signature,
                    "identical": sum(map(str.__eq__, engine.translations, exact)),
                    "batch": args.sentences,
                    "beam_size": args.beam_size,
                    "length_penalty": args.length_penalty,
                    "threads": args.threads,
                    "limits": {name: os.environ[name] for name in LIMITS if name in os.environ},
                    "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "ACTIVE"),
                    "saved_mib": round(size_of(folder_of(Path(folder), name)) / 2**20, 1),
                    "versions": {name: common.metadata.version(name) for name in PACKAGES[name.split()[0]]},
                }
            )
            print(json.dumps(lines[-1]), flush=True)
    return lines


def export(folder: Path, args) -> None:
    """Exports the mean of a run's checkpoints for every engine."""
    import tf_transformer as tt
    from tf_transformer.serving.formats import formats

    options = {"beam_size": args.beam_size, "length_penalty": args.length_penalty, "patience": 1}
    translator = tt.Translator.from_pretrained(args.run, average_last=args.average_last, **options)
    for name in args.engines:
        engine, dtype = name.split()
        formats()[engine].save(translator, folder_of(folder, name), None if dtype == "float32" else dtype)


def folder_of(folder: Path, name: str) -> Path:
    return folder / name.replace(" ", "-") / "1"


class Engine:
    """An engine in a process that only runs while it translates the text."""

    def __init__(self, spawn, name: str, folder: Path, args, sources: list[str]):
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=serve, args=(other, name, folder_of(folder, name), args, sources))
        self.process.start()
        other.close()
        self.pipe.recv()  # waits until it is loaded
        self.stop()
        self.seconds: list[float] = []
        self.others: list[float] = []
        self.translations: list[str] = []

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def translate(self, keep: bool) -> None:
        os.kill(self.process.pid, signal.SIGCONT)
        self.pipe.send("translate")
        seconds, others, self.translations = self.pipe.recv()
        self.stop()
        if keep:
            self.seconds.append(seconds)
            self.others.append(others)


def serve(pipe, name: str, path: Path, args, sources: list[str]) -> None:
    """Runs in the process of an engine."""
    load = {"savedmodel": load_tensorflow, "ctranslate2": load_ctranslate2}
    translate = load.get(name.split()[0], load_client)(path, args)
    by_length = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    pipe.send("loaded")
    while pipe.recv():
        translations, clock = [""] * len(sources), common.Clock()
        clock.tick()
        for start in range(0, len(sources), args.sentences):
            indices = by_length[start : start + args.sentences]
            for i, translation in zip(indices, translate([sources[i] for i in indices]), strict=True):
                translations[i] = translation
        clock.tick()
        pipe.send((clock.seconds()[0], clock.others(), translations))


def load_tensorflow(path: Path, args):
    tf = common.prepare_tensorflow(args)
    import tensorflow_text  # noqa: F401  (its ops are in the SavedModel)

    model = tf.saved_model.load(str(path))
    signature = model.signatures["serving_default"]

    def translate(texts):
        assert model  # A signature does not keep the weights.
        return [text.decode() for text in signature(text=tf.constant(texts))["translation"].numpy()]

    return translate


def load_client(path: Path, args):
    from tf_transformer.extensions.interop.engines.litert_client import opened

    return opened(path, args.threads)


def load_ctranslate2(path: Path, args):
    common.prepare(args)
    import ctranslate2
    import sentencepiece

    engine = ctranslate2.Translator(str(path), inter_threads=1, intra_threads=args.threads)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / "tokenizer.model"))

    def translate(texts):
        results = engine.translate_batch(
            pieces.encode(texts, out_type=str), beam_size=args.beam_size, length_penalty=args.length_penalty
        )
        return pieces.decode([result.hypotheses[0] for result in results])

    return translate


if __name__ == "__main__":
    main()
