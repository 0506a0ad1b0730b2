"""Sentences/s, latency and memory of one process that many clients ask at once, each for one sentence after the other.

The process loads an export: our SavedModel, as TensorFlow Serving does, or one for LiteRT or CTranslate2. Nothing is
sent over a network. First each sentence is translated alone; every later answer is compared with that one. Prints a
line of JSON for each number of clients. With --every it prints more lines, for instance one a minute for an hour:

    python -m benchmarks.under_load EXPORT --source FILE --clients 16 --seconds 3600 --every 60

With --batch, sentences that come within --wait milliseconds are translated together, as TensorFlow Serving does with
--enable_batching.
"""

import argparse
import itertools
import json
import os
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from benchmarks import common

ENGINES = {
    "saved_model.pb": common.OURS,
    "model.tflite": "litert",
    "model.bin": "ctranslate2",
}  # by a file of an export


def main(argv=None) -> list[dict]:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.under_load", None, __doc__, formatter_class=formatter)
    add = parser.add_argument
    add("export", type=Path, metavar="EXPORT", help="the folder of a SavedModel, or of another export")
    add("--source", type=Path, required=True, metavar="FILE", help="sentences, one a line")
    add("--sentences", type=int, default=100, help="how many lines of it, from the first on (100)")
    add(
        "--clients",
        type=int,
        nargs="+",
        default=[1, 8, 64],
        help="clients at once, one number after the other (1 8 64)",
    )
    add("--seconds", type=float, default=20, help="how long for each number of clients (20)")
    add("--every", type=float, metavar="S", help="print a line every S seconds (one at the end)")
    add("--batch", type=int, default=1, help="the most sentences that are translated together (1)")
    add("--wait", type=float, default=5, metavar="MS", help="milliseconds that a sentence waits for others (5)")
    add("--workers", type=int, default=2, help="requests, or batches, that are translated at a time (2)")
    add("--beam-size", type=int, default=4, help="of CTranslate2; other exports have their own (4)")
    args = parser.parse_args(argv)
    for name in ("sentences", "clients", "seconds", "every", "batch", "workers"):
        value = getattr(args, name)
        if value is not None and min(value if name == "clients" else [value]) <= 0:
            parser.error(f"--{name}: expected a positive number, got {value}")

    texts = args.source.read_text("utf-8").splitlines()[: args.sentences]
    if not texts:
        parser.error(f"--source: expected sentences, found none in {args.source}")
    engine = next((name for file, name in ENGINES.items() if (args.export / file).is_file()), None)
    if engine is None:
        parser.error(f"EXPORT: expected a folder with one of {', '.join(ENGINES)}, found none in {args.export}")
    translate = load(engine, args)
    expected = [translate([text])[0] for text in texts]
    ask = Batches(translate, args).ask if args.batch > 1 else lambda text: translate([text])[0]
    lines = []
    for clients in args.clients:
        period = min(args.every or args.seconds, args.seconds)
        for _ in range(round(args.seconds / period)):
            measured = Load(ask, texts, expected, period)
            lines.append(
                {
                    "benchmark": "under_load",
                    "engine": engine,
                    "clients": clients,
                    "batch": args.batch,
                    "workers": args.workers,
                    **measured.run(clients),
                    "resident_mib": round(common.resident_mib()),
                    "peak_mib": round(common.peak_mib()),
                }
            )
            print(json.dumps(lines[-1]), flush=True)
    return lines


class Load:
    """What clients share: the sentences, whose turn it is, and what came of it."""

    def __init__(self, ask, texts: list[str], expected: list[str], seconds: float):
        self.ask = ask
        self.texts = texts
        self.expected = expected
        self.seconds = seconds
        self.turns = itertools.count()  # one step of a counter is atomic in CPython
        self.latencies: list[float] = []
        self.wrong = 0
        self.lock = threading.Lock()

    def run(self, clients: int) -> dict:
        clock, start = common.Clock(), time.monotonic()
        clock.tick()
        with ThreadPoolExecutor(clients) as pool:
            for client in [pool.submit(self.client, start + self.seconds) for _ in range(clients)]:
                client.result()
        clock.tick()
        self.latencies.sort()
        count = len(self.latencies)
        return {
            "answers": count,
            "wrong": self.wrong,
            "sentences_per_second": round(count / (time.monotonic() - start), 1),
            "p50_ms": round(1e3 * self.latencies[count // 2], 1),
            "p99_ms": round(1e3 * self.latencies[min(count * 99 // 100, count - 1)], 1),
            "others_cores": round(clock.others(), 2),
        }

    def client(self, end: float) -> None:
        while True:
            place, start = next(self.turns) % len(self.texts), time.monotonic()
            answer = self.ask(self.texts[place])
            now = time.monotonic()
            with self.lock:
                self.latencies.append(now - start)
                self.wrong += answer != self.expected[place]
            if now >= end:
                return


class Batches:
    """Collects sentences of many clients, and translates them together."""

    def __init__(self, translate, args):
        self.translate = translate
        self.most = args.batch
        self.wait = args.wait / 1e3
        self.waiting: queue.Queue = queue.Queue()
        for _ in range(args.workers):
            threading.Thread(target=self.work, daemon=True).start()

    def ask(self, text: str) -> str:
        answer: Future = Future()
        self.waiting.put((text, answer))
        return answer.result()

    def work(self) -> None:
        while True:
            batch = [self.waiting.get()]
            end = time.monotonic() + self.wait
            while len(batch) < self.most:
                try:
                    batch.append(self.waiting.get(timeout=max(end - time.monotonic(), 0)))
                except queue.Empty:
                    break
            texts, answers = zip(*batch, strict=True)
            try:
                for answer, translation in zip(answers, self.translate(list(texts)), strict=True):
                    answer.set_result(translation)
            except Exception as error:
                for answer in answers:
                    answer.set_exception(error)


def load(engine: str, args):
    """A function from texts to translations."""
    return {common.OURS: load_tensorflow, "litert": load_litert, "ctranslate2": load_ctranslate2}[engine](args)


def load_tensorflow(args):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_NUM_INTRAOP_THREADS"], os.environ["TF_NUM_INTEROP_THREADS"] = "1", str(args.workers)
    from tf_transformer.conformance.loader import Servable

    model = Servable(args.export)
    return lambda texts: [
        text.decode() for text in model.predict({"text": texts}, outputs=["translation"])["translation"]
    ]


def load_litert(args):
    from tf_transformer.engines.litert_client import LiteRTTranslator

    idle: queue.Queue = queue.Queue()  # a translator answers one request at a time
    for _ in range(args.workers):
        idle.put(LiteRTTranslator(args.export, 1))

    def translate(texts):
        translator = idle.get()
        try:
            return translator(texts)
        finally:
            idle.put(translator)

    return translate


def load_ctranslate2(args):
    import ctranslate2
    import sentencepiece

    engine = ctranslate2.Translator(str(args.export), inter_threads=args.workers, intra_threads=1)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(args.export / "tokenizer.model"))

    def translate(texts):
        tokens = pieces.encode(texts, out_type=str)
        results = engine.translate_batch(tokens, beam_size=args.beam_size, length_penalty=0.6)
        return pieces.decode([result.hypotheses[0] for result in results])

    return translate


if __name__ == "__main__":
    main()
