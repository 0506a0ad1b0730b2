"""What all benchmarks share: the work, the clock, the line of JSON. It imports no framework: peers use it, too."""

import argparse
import ctypes
import dataclasses
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OURS = "tf_transformer"
SEED = 1
SERVED_DTYPES = ("float32", "bfloat16", "int8")  # that ours translates in
FIRST_ID = 4  # below: padding, begin, end, unknown


@dataclass(frozen=True)
class Work:
    """The same work for every engine: sentences of random symbols, all of one length, so that nothing is padding."""

    num_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    vocab_size: int = 32_000
    marian: bool = False  # MarianMT's layers: swish and biases; translating, all engines read one checkpoint
    dropout: float = 0.1
    label_smoothing: float = 0.1
    # Training: pairs a step, and tokens a side.
    pairs: int = 32
    length: int = 32
    # Adam (section 5.3)
    learning_rate: float = 1e-4
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    # Translating: tokens a source, beams, and exactly so many steps of the search.
    source_length: int = 32
    beam_size: int = 4
    length_penalty: float = 0.6
    steps: int = 48


WORKS = {
    "base": Work(),
    "small": Work(num_layers=4, d_model=256, d_ff=1024, num_heads=4, vocab_size=8_000, pairs=64, length=24),
    "opus": Work(vocab_size=58_102, marian=True),  # of OPUS-MT: 58,101, its padding being the start symbol, too
    "tiny": Work(2, 16, 32, 2, 400, pairs=3, length=5, source_length=7, beam_size=2, steps=6),  # to try a benchmark
}


# What the command lines have in common


def parser(program: str, description: str, dtypes=("float32", "bfloat16")) -> argparse.ArgumentParser:
    def formatter(prog):
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)

    program_parser = argparse.ArgumentParser(
        f"python -m benchmarks.{program}", description=description, formatter_class=formatter
    )
    add = program_parser.add_argument
    add("--config", default="base", choices=WORKS, help="sizes of the model and of the work (base)")
    if dtypes:
        add("--dtype", default="float32", choices=dtypes, help=f"what is computed in: {', '.join(dtypes)} (float32)")
    add("--threads", type=int, default=2, help="threads of an operation (2)")
    return program_parser


def add_training(program_parser: argparse.ArgumentParser) -> None:
    program_parser.add_argument("--steps", type=int, default=12, help="steps that are timed (12)")
    program_parser.add_argument("--warmup", type=int, default=3, help="steps before that (3)")


def add_step_sizes(program_parser: argparse.ArgumentParser) -> None:
    program_parser.add_argument("--pairs", type=int, help="sentence pairs a step (the configuration's)")
    program_parser.add_argument("--length", type=int, help="tokens of a sentence (the configuration's)")


def with_step_sizes(work: Work, args) -> Work:
    """The work with the command line's sizes of a training step."""
    return dataclasses.replace(work, pairs=args.pairs or work.pairs, length=args.length or work.length)


def add_translation(program_parser: argparse.ArgumentParser) -> None:
    program_parser.add_argument("--sentences", type=int, default=32, help="sentences a request (32)")
    program_parser.add_argument("--repeats", type=int, default=5, help="requests that are timed (5)")
    program_parser.add_argument("--warmup", type=int, default=2, help="requests before that (2)")


def add_work_folder(program_parser: argparse.ArgumentParser) -> None:
    folder = Path(tempfile.gettempdir()) / "tf_transformer-benchmarks"
    program_parser.add_argument(
        "--work", type=Path, default=folder, metavar="DIR", help=f"keeps what is built once ({folder})"
    )


def prepare(args) -> None:
    """Before a framework is imported: its threads, and silence."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(args.threads)


def prepare_tensorflow(args, inter_threads: int = 1):
    """TensorFlow with its threads: so many for an operation, so many operations at a time."""
    prepare(args)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter_threads)
    return tf


# The symbols


def random_ids(work: Work, rows: int, length: int, seed: int):
    """int32 [rows, length], no control symbol among them."""
    import numpy as np

    return np.random.default_rng(seed).integers(FIRST_ID, work.vocab_size, (rows, length)).astype("int32")


def training_batches(work: Work, count: int = 4) -> list:
    """Pairs (source [B, S], target [B, T + 1]); the target's first T symbols go in, its last T are to come out."""
    return [
        (
            random_ids(work, work.pairs, work.length, SEED + 2 * i),
            random_ids(work, work.pairs, work.length + 1, SEED + 2 * i + 1),
        )
        for i in range(count)
    ]


def source_ids(work: Work, sentences: int):
    """int32 [sentences, source_length]."""
    return random_ids(work, sentences, work.source_length, SEED)


def generated_text(vocab_size: int, lines: int, seed: int = SEED) -> Iterator[str]:
    """Sentences of 4 to 40 made-up words, somewhat more than `vocab_size` of them, frequent ones and rare ones."""
    chance = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    vocabulary = ["".join(chance.choices(syllables, k=chance.choice((2, 3, 4)))) for _ in range(vocab_size * 6 // 5)]
    for _ in range(lines):
        indices = (int(len(vocabulary) * chance.random() ** 3) for _ in range(chance.randint(4, 40)))
        yield " ".join(vocabulary[index] for index in indices)


# The clock


class Clock:
    """Times between ticks, and what other processes took of the machine meanwhile."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self._others: list[float] = []

    def tick(self) -> None:
        self._others.append(_busy_seconds() - sum(os.times()[:2]))
        self.stamps.append(time.perf_counter())

    def seconds(self, warmup: int = 0) -> list[float]:
        """What lies between ticks, without the first `warmup`."""
        stamps = self.stamps[warmup:]
        return [after - before for before, after in itertools.pairwise(stamps)]

    def others(self, warmup: int = 0) -> float:
        """Cores that others kept busy: where this is not about 0, the times are not to be trusted."""
        span = self.stamps[-1] - self.stamps[warmup]
        return max(0.0, (self._others[-1] - self._others[warmup]) / span)


def timed(call: Callable, repeats: int, warmup: int) -> Clock:
    """A clock that ticked before and after each call; ask it for what came after the warm-up."""
    clock = Clock()
    clock.tick()
    for _ in range(warmup + repeats):
        call()
        clock.tick()
    return clock


def _busy_seconds() -> float:
    """What all cores have worked since the machine started (Linux; 0 elsewhere)."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


# Memory (Linux)


def peak_mib() -> float:
    """The most memory this process has held, VmHWM, in MiB."""
    return _status("VmHWM")


def resident_mib() -> float:
    """The memory this process holds, VmRSS, in MiB."""
    return _status("VmRSS")


def request_mib(call: Callable) -> float:
    """What a call takes at its peak besides what is held before it, in MiB.

    oneDNN's allocator, of most of TensorFlow's CPUs, keeps what it was given back, so it is asked; of others the
    process's pages are counted.
    """
    tf = sys.modules.get("tensorflow")
    if tf is not None and _allocator_counts(tf):
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        call()
        return (tf.config.experimental.get_memory_info("CPU:0")["peak"] - before) / 2**20
    ctypes.CDLL(None).malloc_trim(0)  # what earlier calls have given back
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    resident = _status("VmRSS")
    call()
    return _status("VmHWM") - resident


def _allocator_counts(tf) -> bool:
    """Whether TensorFlow's allocator says what it holds, from now on; not on a CPU without AVX-512."""
    try:
        tf.config.experimental.reset_memory_stats("CPU:0")
    except ValueError:
        return False
    return True


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(name + ":"))
    return int(kib) / 1024


# The line


def report(benchmark: str, engine: str, args, clock: Clock, tokens: float, packages, **more) -> dict:
    """Say how fast something was; `tokens` are those of one timed step or request."""
    times = clock.seconds(args.warmup)
    median = statistics.median(times)
    speed = {
        "tokens_per_second": round(tokens / median, 2),
        "milliseconds": round(median * 1e3, 3),
        "fastest_milliseconds": round(min(times) * 1e3, 3),
        "timed": len(times),
        "first_milliseconds": round(clock.seconds()[0] * 1e3, 1),
        "others_cores": round(clock.others(args.warmup), 2),
    }
    return say(benchmark, engine, args, packages, **speed, **more)


def say(benchmark: str, engine: str, args, packages, **more) -> dict:
    """Print one line of JSON and return what it says."""
    line = {
        "benchmark": benchmark,
        "engine": engine,
        "config": args.config,
        "dtype": args.dtype,
        "threads": args.threads,
        "peak_mib": round(peak_mib(), 1),
        **more,
        "versions": {name: metadata.version(name) for name in packages},
    }
    print(json.dumps(line), flush=True)
    return line


# The lines of several runs


def summary(lines) -> list[dict]:
    """For each engine its best way to run, by the median of its rounds; fastest first.

    Returns:
        rows of the first line's keys, with `tokens_per_second` a median, `lowest`, `highest`, and `ratio`, that of ours
        to it, or `None`.
    """
    ways: dict[tuple, list[dict]] = {}
    for line in lines:
        ways.setdefault((line["engine"], line.get("mode"), line["threads"], line["dtype"]), []).append(line)
    best: dict[str, dict] = {}
    for (engine, *_), runs in ways.items():
        rates = [run["tokens_per_second"] for run in runs]
        row = runs[0] | {"tokens_per_second": statistics.median(rates), "lowest": min(rates), "highest": max(rates)}
        row |= {"rounds": len(runs), "others_cores": max(run["others_cores"] for run in runs)}
        if "load_seconds" in row:
            row["load_seconds"] = statistics.median(run["load_seconds"] for run in runs)
        if engine not in best or row["tokens_per_second"] > best[engine]["tokens_per_second"]:
            best[engine] = row
    ours = best[OURS]["tokens_per_second"] if OURS in best else None
    for row in best.values():
        row["ratio"] = round(ours / row["tokens_per_second"], 2) if ours else None
    return sorted(best.values(), key=lambda row: -row["tokens_per_second"])


def least_values(rows: list[dict], layer: str, varied: str, measured: str) -> list[tuple]:
    """A layer's pairs of size and least value, by size."""
    least: dict[int, float] = {}
    for row in rows:
        if (row["layer"], row["varied"]) == (layer, varied):
            least[row[varied]] = min(row[measured], least.get(row[varied], row[measured]))
    return sorted(least.items())


# Peers


def run_peer(engine: str, packages, tasks: dict[str, Callable], dtypes, modes=("default",), argv=None) -> dict:
    """The program of a peer: one task, timed.

    Args:
        engine: its name, which is that of its file.
        packages: whose versions are reported.
        tasks: "training", "translation" -> a function of (work, args) that builds the model and gives the function that
            makes one step, or answers one request and returns how many steps the search took.
        dtypes: what it can compute in.
        modes: ways to run it.
    """
    program_parser = parser(f"peers.{engine}", f"{engine}: {' or '.join(tasks)}, the same work as ours.", dtypes)
    add = program_parser.add_argument
    add("--task", default=next(iter(tasks)), choices=tasks, help=f"({next(iter(tasks))})")
    add("--mode", default=modes[0], choices=modes, help=f"({modes[0]})")
    add("--repeats", type=int, default=8, help="steps or requests that are timed (8)")
    add("--warmup", type=int, default=2, help="steps or requests before that (2)")
    add("--sentences", type=int, default=32, help="sentences a request (32)")
    add_step_sizes(program_parser)
    add_work_folder(program_parser)
    args = program_parser.parse_args(argv)
    work = with_step_sizes(WORKS[args.config], args)
    prepare(args)
    began = time.perf_counter()
    call = tasks[args.task](work, args)
    loading = time.perf_counter() - began
    if args.task == "training":
        tokens, facts = work.pairs * work.length, {}
    else:
        tokens, facts = args.sentences * work.steps, {"sentences": args.sentences, "load_seconds": round(loading, 2)}
    clock = timed(call, args.repeats, args.warmup)
    if args.task == "translation":
        facts["peak_mib"] = round(peak_mib(), 1)  # before it starts anew
        facts["request_mib"] = round(request_mib(call), 1)
        steps = call()
        if steps != work.steps:
            raise AssertionError(f"expected {work.steps} steps of the search, got {steps}")
    return report(args.task, engine, args, clock, tokens, packages, mode=args.mode, **facts)
