"""Measures the growth of time and memory: of training with length and batch, of translation with length, batch, beam
and vocabulary, and of a search step with its position. Writes a table (.csv) and, if requested, a plot."""

import csv
import functools
import itertools
import statistics
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import common, draw
from benchmarks.training import train
from benchmarks.translation import exported, load_in_python, random_translator, source_sentences

TASKS = ("training", "translation", "search step")


def main(argv=None) -> dict:
    parser = common.parser("growth", __doc__)
    add = parser.add_argument
    add("--tasks", nargs="+", default=TASKS, choices=TASKS, help=f"(all of {', '.join(map(repr, TASKS))})")
    add("--sentences", type=int, default=8, help="sentences per request unless varied (8)")
    add("--longest", type=int, default=256, help="steps of the longest search (256)")
    add("--repeats", type=int, default=3, help="timed steps or requests per point (3)")
    add("--warmup", type=int, default=1, help="untimed steps or requests before (1)")
    add("--inter-threads", type=int, default=1, help="concurrent operations (1)")
    add("--out", type=Path, default=Path("growth.csv"), metavar="FILE", help="output table (growth.csv)")
    add("--picture", type=Path, metavar="FILE", help="output plot")
    common.add_work_folder(parser)
    args = parser.parse_args(argv)
    work = common.WORKS[args.config]

    common.prepare_tensorflow(args, args.inter_threads)
    rows: list[dict] = []
    facts = {}
    if "training" in args.tasks:
        rows += training(work, args)
    if "translation" in args.tasks:
        rows += translation(work, args)
    if "search step" in args.tasks:
        steps = search_steps(work, args)
        rows += steps
        for step in (10, 200):
            if step < len(steps):
                around = (row["milliseconds"] for row in steps[step - 5 : step + 6])
                facts[f"step_{step}_milliseconds"] = round(statistics.median(around), 3)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["task", "varied", "value", "milliseconds", "mib"])
        writer.writeheader()
        writer.writerows(rows)
    if args.picture:
        draw.curves(rows, args.picture)
    packages = ["tf-transformer", "tensorflow"]
    return common.say("growth", "tf_transformer", args, packages, table=str(args.out), points=len(rows), **facts)


def point(task, varied, value, seconds, mib="") -> dict:
    row = {"task": task, "varied": varied, "value": value, "milliseconds": round(seconds * 1e3, 3), "mib": mib}
    print(f"{task}, {varied} {value}: {row['milliseconds']} ms", flush=True)
    return row


def training(work, args) -> list[dict]:
    """Measures a step's time against length and number of sentences."""
    rows = []
    for varied, values in (
        ("length", [work.length // 2, work.length, 2 * work.length, 4 * work.length]),
        ("pairs", [work.pairs // 4, work.pairs // 2, work.pairs, 2 * work.pairs]),
    ):
        for value in sorted({value for value in values if value}):
            clock, _ = train(replace(work, **{varied: value}), args.dtype, args.warmup + args.repeats)
            rows.append(point("training", varied, value, statistics.median(clock.seconds(args.warmup))))
    return rows


def translation(work, args) -> list[dict]:
    """Measures a request's time and memory against its sizes and against the vocabulary."""
    longest = args.longest

    @functools.lru_cache(maxsize=1)
    def served(work):
        return load_in_python(exported(work, args.dtype, args.work, longest), args)

    def measure(varied, value, sentences=args.sentences, length=None, beam_size=work.beam_size, work=work):
        call = served(work)
        text = source_sentences(replace(work, source_length=length or work.source_length), sentences, args.work)
        options = {"beam_size": [beam_size], "max_length": [length or work.steps]}

        def request():
            return call("translate", text=text, **options)

        clock = common.timed(request, args.repeats, args.warmup)
        memory = round(common.request_mib(request), 1)
        return point("translation", varied, value, statistics.median(clock.seconds(args.warmup)), memory)

    lengths = [length for length in (8, 16, 32, 64, 128) if length <= longest]
    rows = [measure("length", length, length=length) for length in lengths]
    rows += [measure("sentences", count, count) for count in (1, 2, 4, 8, 16, 32, 64)]
    rows += [measure("beam size", size, beam_size=size) for size in (1, 2, 4, 8, 16)]
    sizes = [work.vocab_size // 4, work.vocab_size // 2, work.vocab_size, 2 * work.vocab_size]
    rows += [measure("vocabulary", size, work=replace(work, vocab_size=size)) for size in sizes if size >= 400]
    return rows


def search_steps(work, args) -> list[dict]:
    """Measures the time between the steps of one search of `longest` steps."""
    import tensorflow as tf

    translator = random_translator(work, args.dtype, args.work, extra_length=args.longest)
    stamps: list[float] = []
    decode_step = translator.model.decode_step

    def stamped(ids, *others, **named):
        def stamp(ids):  # runs when they are computed, after the previous step
            stamps.append(time.perf_counter())
            return ids

        shape = ids.shape
        (ids,) = tf.numpy_function(stamp, [ids], [ids.dtype])
        return decode_step(tf.ensure_shape(ids, shape), *others, **named)

    translator.model.decode_step = stamped
    text = tf.constant(source_sentences(work, args.sentences, args.work))

    @functools.partial(tf.function, autograph=False)
    def search(text):
        source, source_length, _ = translator.source(text)
        return translator.search(source, source_length, max_length=args.longest).lengths

    for _ in range(args.warmup):
        search(text)
    runs = []
    for _ in range(args.repeats):
        stamps.clear()
        search(text)
        runs.append([after - before for before, after in itertools.pairwise(stamps)])
    medians = [statistics.median(step) for step in zip(*runs, strict=True)]
    return [point("search step", "position", position, seconds) for position, seconds in enumerate(medians)]


if __name__ == "__main__":
    main()
