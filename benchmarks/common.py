"""Shared by all benchmarks: the work, the clock, the JSON line. Imports no framework, since peers also use it."""

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
SERVED_DTYPES = ("float32", "bfloat16", "int8")  # our dtypes for translation
FIRST_ID = 4  # Smaller ids are padding, BOS, EOS, unknown.


@dataclass(frozen=True)
class Work:
    """Work of every engine: sentences of random tokens, all of one length, without padding."""

    num_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    vocab_size: int = 32_000
    marian: bool = False  # MarianMT's layers, with swish and biases. To translate, all engines read one checkpoint.
    dropout: float = 0.1
    label_smoothing: float = 0.1
    # Training: pairs per step, tokens per side.
    pairs: int = 32
    length: int = 32
    # Adam (section 5.3)
    learning_rate: float = 1e-4
    beta_1: float = 0.9
    beta_2: float = 0.98
    epsilon: float = 1e-9
    # Translation: tokens per source, beams, and the exact number of steps of a search.
    source_length: int = 32
    beam_size: int = 4
    length_penalty: float = 0.6
    steps: int = 48


WORKS = {
    "base": Work(),
    "small": Work(num_layers=4, d_model=256, d_ff=1024, num_heads=4, vocab_size=8_000, pairs=64, length=24),
    "opus": Work(vocab_size=58_102, marian=True),  # OPUS-MT's 58,101, whose padding is also BOS
    "tiny": Work(2, 16, 32, 2, 400, pairs=3, length=5, source_length=7, beam_size=2, steps=6),  # for tests
}


# Command lines


def parser(program: str, description: str, dtypes=("float32", "bfloat16")) -> argparse.ArgumentParser:
    def formatter(prog):
        return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30, width=110)

    program_parser = argparse.ArgumentParser(
        f"python -m benchmarks.{program}", description=description, formatter_class=formatter
    )
    add = program_parser.add_argument
    add("--config", default="base", choices=WORKS, help="sizes of the model and of the work (base)")
    if dtypes:
        add("--dtype", default="float32", choices=dtypes, help=f"dtype of computations: {', '.join(dtypes)} (float32)")
    add("--threads", type=int, default=2, help="threads per operation (2)")
    return program_parser


def add_training(program_parser: argparse.ArgumentParser) -> None:
    program_parser.add_argument("--steps", type=int, default=12, help="timed steps (12)")
    program_parser.add_argument("--warmup", type=int, default=3, help="untimed steps before (3)")


def add_step_sizes(program_parser: argparse.ArgumentParser) -> None:
    program_parser.add_argument("--pairs", type=int, help="sentence pairs per step (the configuration's)")
    program_parser.add_argument("--length", type=int, help="tokens per sentence (the configuration's)")


def with_step_sizes(work: Work, args) -> Work:
    """Returns the work with the command line's sizes of a training step."""
    return dataclasses.replace(work, pairs=args.pairs or work.pairs, length=args.length or work.length)


def add_translation(program_parser: argparse.ArgumentParser) -> None:
    program_parser.add_argument("--sentences", type=int, default=32, help="sentences per request (32)")
    program_parser.add_argument("--repeats", type=int, default=5, help="timed requests (5)")
    program_parser.add_argument("--warmup", type=int, default=2, help="untimed requests before (2)")


def add_work_folder(program_parser: argparse.ArgumentParser) -> None:
    folder = Path(tempfile.gettempdir()) / "tf_transformer-benchmarks"
    program_parser.add_argument(
        "--work", type=Path, default=folder, metavar="DIR", help=f"directory of exports and text ({folder})"
    )


def prepare(args) -> None:
    """Sets the threads of a framework and silences it, before its import."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(args.threads)


def prepare_tensorflow(args, inter_threads: int = 1):
    """Imports TensorFlow with the numbers of threads per operation and of concurrent operations."""
    prepare(args)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter_threads)
    return tf


# Tokens


def random_ids(work: Work, rows: int, length: int, seed: int):
    """Returns ids, int32 [rows, length], without control tokens."""
    import numpy as np

    return np.random.default_rng(seed).integers(FIRST_ID, work.vocab_size, (rows, length)).astype("int32")


def training_batches(work: Work, count: int = 4) -> list:
    """Returns pairs (source [B, S], target [B, T + 1]). Inputs are a target's first T tokens, labels its last T."""
    return [
        (
            random_ids(work, work.pairs, work.length, SEED + 2 * i),
            random_ids(work, work.pairs, work.length + 1, SEED + 2 * i + 1),
        )
        for i in range(count)
    ]


def source_ids(work: Work, sentences: int):
    """Returns ids, int32 [sentences, source_length]."""
    return random_ids(work, sentences, work.source_length, SEED)


def generated_text(vocab_size: int, lines: int, seed: int = SEED) -> Iterator[str]:
    """Yields sentences of 4 to 40 made-up words, of slightly more than `vocab_size` frequent and rare words."""
    chance = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
    vocabulary = ["".join(chance.choices(syllables, k=chance.choice((2, 3, 4)))) for _ in range(vocab_size * 6 // 5)]
    for _ in range(lines):
        indices = (int(len(vocabulary) * chance.random() ** 3) for _ in range(chance.randint(4, 40)))
        yield " ".join(vocabulary[index] for index in indices)


# The clock


class Clock:
    """Measures the time between ticks, and the load of other processes during it."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self._others: list[float] = []

    def tick(self) -> None:
        self._others.append(_busy_seconds() - sum(os.times()[:2]))
        self.stamps.append(time.perf_counter())

    def seconds(self, warmup: int = 0) -> list[float]:
        """Returns the seconds between ticks, without the first `warmup`."""
        stamps = self.stamps[warmup:]
        return [after - before for before, after in itertools.pairwise(stamps)]

    def others(self, warmup: int = 0) -> float:
        """Returns the number of cores that other processes kept busy. Trust the times only if it is about 0."""
        span = self.stamps[-1] - self.stamps[warmup]
        return max(0.0, (self._others[-1] - self._others[warmup]) / span)


def timed(call: Callable, repeats: int, warmup: int) -> Clock:
    """Returns a clock that ticked before and after each call, warm-up included."""
    clock = Clock()
    clock.tick()
    for _ in range(warmup + repeats):
        call()
        clock.tick()
    return clock


def _busy_seconds() -> float:
    """Returns the busy seconds of all cores since the machine started (on Linux, otherwise 0)."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    except OSError:
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


# Memory (Linux)


def peak_mib() -> float:
    """Returns the peak memory of this process, VmHWM, in MiB."""
    return _status("VmHWM")


def resident_mib() -> float:
    """Returns the memory of this process, VmRSS, in MiB."""
    return _status("VmRSS")


def request_mib(call: Callable) -> float:
    """Returns the memory that a call takes at its peak in addition to the memory before it, in MiB.

    oneDNN's allocator, which TensorFlow has on most CPUs, keeps freed memory, so its count is used. Otherwise the
    process's pages are counted.
    """
    tf = sys.modules.get("tensorflow")
    if tf is not None and _allocator_counts(tf):
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        call()
        return (tf.config.experimental.get_memory_info("CPU:0")["peak"] - before) / 2**20
    ctypes.CDLL(None).malloc_trim(0)  # frees the memory of earlier calls
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    resident = _status("VmRSS")
    call()
    return _status("VmHWM") - resident


def _allocator_counts(tf) -> bool:
    """Returns whether TensorFlow's allocator counts its memory from now on. On CPUs without AVX-512 it does not."""
    try:
        tf.config.experimental.reset_memory_stats("CPU:0")
    except ValueError:
        return False
    return True


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(name + ":"))
    return int(kib) / 1024


# JSON line


def report(benchmark: str, engine: str, args, clock: Clock, tokens: float, packages, **more) -> dict:
    """Prints the speed of something. `tokens` are those of one timed step or request."""
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
    """Prints one JSON line, and returns its contents."""
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


# Lines of several runs


def summary(lines) -> list[dict]:
    """Returns the best mode of each engine by the median of its rounds, fastest first.

    Returns:
        Rows with the keys of the first line. `tokens_per_second` is a median. `lowest`, `highest` and `ratio` (ours to
        this engine, or `None`) are added.
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
    """Returns a layer's pairs of size and smallest value, by size."""
    least: dict[int, float] = {}
    for row in rows:
        if (row["layer"], row["varied"]) == (layer, varied):
            least[row[varied]] = min(row[measured], least.get(row[varied], row[measured]))
    return sorted(least.items())


# Peers


def run_peer(engine: str, packages, tasks: dict[str, Callable], dtypes, modes=("default",), argv=None) -> dict:
    """Runs the program of a peer: one task, timed.

    Args:
        engine: Name of the engine and of its file.
        packages: Packages whose versions are reported.
        tasks: Functions of (work, args) by the task, "training" or "translation". Each builds the model and returns a
            function that makes one step, or translates one request and returns the number of steps of the search.
        dtypes: Dtypes it can compute in.
        modes: Modes it can run in.
    """
    program_parser = parser(f"peers.{engine}", f"{engine}: {' or '.join(tasks)}, the same work as ours.", dtypes)
    add = program_parser.add_argument
    add("--task", default=next(iter(tasks)), choices=tasks, help=f"({next(iter(tasks))})")
    add("--mode", default=modes[0], choices=modes, help=f"({modes[0]})")
    add("--repeats", type=int, default=8, help="timed steps or requests (8)")
    add("--warmup", type=int, default=2, help="untimed steps or requests before (2)")
    add("--sentences", type=int, default=32, help="sentences per request (32)")
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
        facts["peak_mib"] = round(peak_mib(), 1)  # before it is reset
        facts["request_mib"] = round(request_mib(call), 1)
        steps = call()
        if steps != work.steps:
            raise AssertionError(f"expected {work.steps} steps of the search, got {steps}")
    return report(args.task, engine, args, clock, tokens, packages, mode=args.mode, **facts)
