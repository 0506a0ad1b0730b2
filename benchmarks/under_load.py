"""Measures sentences/s and latency of a model with many clients at once, each with one sentence after the other.

The model is at a server with TensorFlow Serving's REST API. Or this process loads an export (our SavedModel, as
TensorFlow Serving loads it, or one for LiteRT or CTranslate2), and also prints its memory. First each sentence is
translated separately. All later outputs are compared with these. Prints one JSON line for each number of clients, or
more with --every, for instance one per minute for an hour:

    python -m benchmarks.under_load EXPORT --source FILE --clients 16 --seconds 3600 --every 60

With --serve, each of several exports has a server on 127.0.0.1, and they are measured in turn, --rounds times:
`tf-transformer serve` for SavedModels, LiteRT and ONNX, CTranslate2 behind Flask and waitress for its exports, and
LibreTranslate for an .argosmodel. The last lines are the medians of the rounds.

    python -m benchmarks.under_load --serve litert/demo/1 ctranslate2/demo/1 argos/demo/1/translate-en_de.argosmodel
        --libretranslate /venvs/libretranslate/bin/python --source FILE --clients 1 8 32 --rounds 3

With --batch, sentences that arrive within --wait milliseconds are translated together, as TensorFlow Serving does with
--enable_batching. Rejected requests, such as with a full queue, and late responses are errors.
"""

import argparse
import collections
import itertools
import json
import os
import queue
import re
import statistics
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from benchmarks import common, servers

IN_PROCESS = {"savedmodel": common.OURS, "litert": "litert", "ctranslate2": "ctranslate2"}  # engines, by kind of export


def main(argv=None) -> list[dict]:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.under_load", None, __doc__, formatter_class=formatter)
    add = parser.add_argument
    add("export", metavar="EXPORT", nargs="?", help="directory of an export, or http://HOST/v1/models/NAME")
    add("--serve", nargs="+", default=[], metavar="EXPORT", help="exports that have a server each, instead of EXPORT")
    add("--source", type=Path, required=True, metavar="FILE", help="sentences, one per line")
    add("--sentences", type=int, default=100, help="number of lines to read (100)")
    add(
        "--clients",
        type=int,
        nargs="+",
        default=[1, 8, 64],
        help="numbers of concurrent clients, in turn (1 8 64)",
    )
    add("--seconds", type=float, default=20, help="seconds per number of clients (20)")
    add("--requests", type=int, metavar="N", help="maximum requests per number of clients (no limit)")
    add("--rounds", type=int, default=1, help="rounds of --serve (1)")
    add("--every", type=float, metavar="S", help="print a line every S seconds (one at the end)")
    add("--batch", type=int, default=1, help="maximum sentences per batch (1)")
    add("--wait", type=float, default=5, metavar="MS", help="maximum milliseconds to wait for a batch (5)")
    add("--workers", type=int, default=2, help="number of concurrent requests or batches (2)")
    add("--beam-size", type=int, default=4, help="beam size of CTranslate2. Other exports fix theirs (4).")
    add("--timeout", type=float, default=30, metavar="S", help="seconds to wait for a server (30)")
    add = parser.add_argument_group("with --serve").add_argument
    add("--documents", action="store_true", help="meanwhile, translate two long documents, one without full stops")
    add("--languages", nargs=2, default=["en", "de"], metavar="XX", help="source and target language (en de)")
    add("--libretranslate", default=sys.executable, metavar="PYTHON", help="Python of LibreTranslate's environment")
    here = str(Path(sys.executable).with_name("tf-transformer"))
    command = "commands tf-transformer, of several versions: each serves the exports (this environment's)"
    add("--commands", nargs="+", default=[here], metavar="COMMAND", help=command)
    add("--options", default="", metavar="WORDS", help="options of tf-transformer serve, in one string")
    args = parser.parse_args(argv)
    for name in ("sentences", "clients", "seconds", "every", "batch", "workers", "timeout", "requests", "rounds"):
        value = getattr(args, name)
        if value is not None and min(value if name == "clients" else [value]) <= 0:
            parser.error(f"--{name}: expected a positive number, got {value}")

    texts = args.source.read_text("utf-8").splitlines()[: args.sentences]
    if not texts:
        parser.error(f"--source: expected sentences, found none in {args.source}")
    if bool(args.export) == bool(args.serve):
        parser.error("expected either EXPORT or --serve")
    for export in args.serve or [args.export]:
        known = servers.kind_of(export) if args.serve else "://" in export or servers.kind_of(export) in IN_PROCESS
        if not known:
            files = ", ".join(file for file, kind in servers.FILES.items() if args.serve or kind in IN_PROCESS)
            parser.error(f"EXPORT: expected a directory with one of {files}, found none in {export}")
    try:
        return of_servers(args, texts) if args.serve else of_export(args, texts)
    except OSError as error:
        parser.error(f"{args.export or '--serve'}: {error}")


def of_export(args, texts: list[str]) -> list[dict]:
    """Measures an export in this process, or a server that runs already."""
    engine = "server" if "://" in args.export else IN_PROCESS[servers.kind_of(args.export)]
    translate = load(engine, args)
    expected = [translate([text])[0] for text in texts]
    ask = Batches(translate, args).ask if args.batch > 1 else lambda text: translate([text])[0]
    lines = []
    for clients in args.clients:
        period = min(args.every or args.seconds, args.seconds)
        for _ in range(round(args.seconds / period)):
            measured = Load(ask, texts, expected, period, args.requests)
            line = {"benchmark": "under_load", "engine": engine, "clients": clients, "batch": args.batch}
            line |= {"workers": args.workers, **measured.run(clients)}
            if engine != "server":
                line |= {"resident_mib": round(common.resident_mib()), "peak_mib": round(common.peak_mib())}
            lines.append(say(line))
    return lines


def of_servers(args, texts: list[str]) -> list[dict]:
    """Measures servers of several exports in turn."""
    lines, running = [], list[tuple[str, servers.Server, list[str]]]()
    try:
        for export, name in zip(args.serve, names_of(args.serve), strict=True):
            ours = servers.kind_of(export) not in (servers.CTRANSLATE2, servers.LIBRETRANSLATE)
            for number, command in enumerate(args.commands if ours else args.commands[:1]):
                words = args.options.split() if number == 0 else []
                server = servers.Server(export, args.languages, args.libretranslate, words, command, args.timeout)
                running.append((name + f" {number}" * bool(number), server, []))
                server.wait()
                running[-1][2][:] = [server.translate([text])[0] for text in texts]
        for turn, clients, (name, server, expected) in itertools.product(range(args.rounds), args.clients, running):
            measured = Load(
                lambda text, to=server: to.translate([text])[0], texts, expected, args.seconds, args.requests
            )
            with server.busy_with(documents(texts) if args.documents else []):
                line = {"benchmark": "under_load", "engine": name, "clients": clients, "documents": args.documents}
                cpu = server.cpu_seconds()
                line |= {"round": turn, **measured.run(clients), "mib": round(server.mib())}
                cpu = server.cpu_seconds() - cpu
                line["cpu_ms"] = round(1e3 * cpu / max(1, line["answers"]), 2)
                line["others_cores"] = round(max(0.0, line["others_cores"] - cpu / line.pop("seconds")), 2)
            lines.append(say(line))
    finally:
        for _, server, _ in running:
            server.stop()
    return lines + [say(line) for line in medians(lines)]


def names_of(exports: list[str]) -> list[str]:
    """Returns the kind of each export, with its path if several have this kind."""
    kinds = [str(servers.kind_of(export)) for export in exports]
    return [f"{kind} {export}" if kinds.count(kind) > 1 else kind for kind, export in zip(kinds, exports, strict=True)]


def documents(texts: list[str]) -> list[str]:
    """Returns a document of 3,400 sentences, and 32 KB of words without full stops."""
    sentences = " ".join(f"{text.rstrip('. ')}." for text in itertools.islice(itertools.cycle(texts), 3_400))
    words = re.sub(r"[^\w\s]", "", sentences)
    return [sentences, (words * (1 + 32_000 // len(words)))[:32_000]]


def medians(lines: list[dict]) -> list[dict]:
    """Returns a line for each engine and number of clients, with medians of the numbers over the rounds."""
    groups = collections.defaultdict(list)
    for line in lines:
        groups[line["engine"], line["clients"]].append(line)
    summed = ("wrong", "answers")
    return [
        first
        | {name: statistics.median(line[name] for line in group) for name in first if name[-2:] in ("ms", "ib", "nd")}
        | {name: sum(line[name] for line in group) for name in summed}
        | {"errors": dict(sum((collections.Counter(line["errors"]) for line in group), collections.Counter()))}
        | {"round": "median", "others_cores": max(line["others_cores"] for line in group)}
        for group in groups.values()
        for first in group[:1]
    ]


def say(line: dict) -> dict:
    print(json.dumps(line), flush=True)
    return line


class Load:
    """State that clients share: sentences, whose turn it is, and the results."""

    def __init__(self, ask, texts: list[str], expected: list[str], seconds: float, requests=None):
        self.ask = ask
        self.requests = requests or sys.maxsize
        self.texts = texts
        self.expected = expected
        self.seconds = seconds
        self.turns = itertools.count()  # Its steps are atomic in CPython.
        self.latencies: list[float] = []
        self.wrong = 0
        self.errors: collections.Counter[str] = collections.Counter()
        self.lock = threading.Lock()

    def run(self, clients: int) -> dict:
        clock, start = common.Clock(), time.monotonic()
        clock.tick()
        with ThreadPoolExecutor(clients) as pool:
            for client in [pool.submit(self.client, start + self.seconds) for _ in range(clients)]:
                client.result()
        clock.tick()
        self.latencies.sort()
        count, seconds = len(self.latencies), time.monotonic() - start
        return {
            "answers": count,
            "wrong": self.wrong,
            "errors": dict(self.errors),
            "sentences_per_second": round(count / seconds, 1),
            "seconds": round(seconds, 2),
            **{f"p{percent}_ms": percentile(self.latencies, percent) for percent in (50, 90, 99) if count},
            "others_cores": round(clock.others(), 2),
        }

    def client(self, end: float) -> None:
        while True:
            turn, start = next(self.turns), time.monotonic()
            if turn >= self.requests:
                return
            index = turn % len(self.texts)
            try:
                translation, error = self.ask(self.texts[index]), ""
            except OSError as raised:
                translation, error = None, str(raised)
            now = time.monotonic()
            with self.lock:
                if error:
                    self.errors[error] += 1
                else:
                    self.latencies.append(now - start)
                    self.wrong += translation != self.expected[index]
            if now >= end:
                return


def percentile(seconds: list[float], percent: int) -> float:
    """Returns a percentile of sorted values, in milliseconds."""
    return round(1e3 * seconds[-(-len(seconds) * percent // 100) - 1], 1)


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
        future: Future = Future()
        self.waiting.put((text, future))
        return future.result()

    def work(self) -> None:
        while True:
            batch = [self.waiting.get()]
            end = time.monotonic() + self.wait
            while len(batch) < self.most:
                try:
                    batch.append(self.waiting.get(timeout=max(end - time.monotonic(), 0)))
                except queue.Empty:
                    break
            texts, futures = zip(*batch, strict=True)
            try:
                for future, translation in zip(futures, self.translate(list(texts)), strict=True):
                    future.set_result(translation)
            except Exception as error:
                for future in futures:
                    future.set_exception(error)


def load(engine: str, args):
    """Returns a function from texts to translations."""
    loaders = {common.OURS: load_tensorflow, "litert": load_litert, "ctranslate2": load_ctranslate2}
    return (loaders | {"server": load_server})[engine](args)


def load_server(args):
    from savedmodels.clients.rest import Client

    host, _, name = args.export.partition("/v1/models/")
    client = Client(host, name, timeout=args.timeout, retries=0)
    return lambda texts: [output["translation"] for output in client.predict(texts)]


def load_tensorflow(args):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_NUM_INTRAOP_THREADS"], os.environ["TF_NUM_INTEROP_THREADS"] = "1", str(args.workers)
    from tf_transformer.extensions.conformance.loader import Servable

    model = Servable(args.export)
    return lambda texts: [
        text.decode() for text in model.predict({"text": texts}, outputs=["translation"])["translation"]
    ]


def load_litert(args):
    from tf_transformer.extensions.interop.engines.litert_client import LiteRTTranslator

    idle: queue.Queue = queue.Queue()  # A translator takes one request at a time.
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

    engine = ctranslate2.Translator(args.export, inter_threads=args.workers, intra_threads=1)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(Path(args.export) / "tokenizer.model"))

    def translate(texts):
        tokens = pieces.encode(texts, out_type=str)
        results = engine.translate_batch(tokens, beam_size=args.beam_size, length_penalty=0.6)
        return pieces.decode([result.hypotheses[0] for result in results])

    return translate


if __name__ == "__main__":
    main()
