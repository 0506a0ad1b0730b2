"""Write the results and pictures of docs/explanation/claims.md from the lines in examples/claims/results.jsonl."""

import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.claims.models import KINDS
from examples.claims.plan import BASE, MARKS, NAMES, SIZES, Line, experiments
from examples.claims.run import RESULTS, read
from tf_transformer.utils.files import write_text
from tf_transformer.utils.lazy import import_extra
from trainers.command import options, run_program

PAGE = Path(__file__).parents[2] / "docs/explanation/claims.md"
bounds = functools.partial(np.percentile, q=(2.5, 97.5))
NOT_RUN, PARTLY, HOLDS, FAILS = "not run yet", "run in part", "holds", "does not hold at this size"
# What the paper's claims compare: "a > b" means that a scores higher, "a = b" that their difference is not significant.
CLAIMS = {
    "decoding": [
        "last 5, beams 4, alpha 0.6 > last 1, beams 4, alpha 0.6",
        "last 5, beams 4, alpha 0.6 > last 5, beams 1, alpha 0.0",
        "last 5, beams 4, alpha 0.6 > last 5, beams 4, alpha 0.0",
    ],
    "positions": [
        "sinusoids, short = learned, short",
        *(f"sinusoids, long > {kind}, long" for kind in ("learned", "none")),
    ],
    "warmup": [f"norm {kind}, 600 steps > norm {kind}, 0 steps" for kind in ("after", "first")],
    "regularization": [f"0.1 > {name} 0.0" for name in ("dropout", "label_smoothing")],
    "tuning": [],
    "parsing": [f"transformer, 10,000 trees > {kind}, 10,000 trees" for kind in ("lstm", "pcfg")],
    "scaling": [f"d_k {d_k}, scaled {sign} d_k {d_k}, unscaled" for d_k, sign in ((16, "="), (64, ">"), (256, ">"))],
    "cost": [f"transformer, {size} > {kind}, {size}" for size in SIZES for kind in ("lstm", "conv")],
    "curve_tuning": [],
    "curves": [f"transformer, {MARKS[-1]:,} updates > {kind}, {MARKS[-1]:,} updates" for kind in ("lstm", "conv")],
    "longer": [f"base, 16,000 updates > {name} 0.0, 16,000 updates" for name in ("dropout", "label_smoothing")],
    "table3": [
        *(f"base > {row}" for row in ("A_h1", "A_h32", "B_dk16", "C_N2", "D_drop0")),
        *(f"{row} > base" for row in ("C_N8", "C_d1024", "big")),
        "base = E_learned",
    ],
}
# Columns after the score, which are fields of a line
COLUMNS = {
    "decoding": (),  # the line has the perplexity of the last checkpoint only
    "tuning": ("perplexity",),
    "scaling": ("perplexity", "entropy", "gradient_norm"),
    "parsing": ("parameters", "seconds"),
    "cost": ("parameters", "perplexity", "flop", "seconds"),
    "curves": ("perplexity", "flop", "core_hours"),
}
SCORES = {"parsing": "F1"}  # BLEU for others
FORMATS = {"parameters": ",.0f", "seconds": ",.0f", "flop": ".1e"}
# Pictures have these axes, or bars.
AXES = {
    "cost": ("flop", "seconds"),
    "curves": ("flop", "core_hours"),
    "parsing": ("trees",),
}


class Result(NamedTuple):
    """Scores of trials that differ by seed: their lines, the mean score, and that of bootstrap samples."""

    lines: list[Line]
    value: float
    samples: np.ndarray


def results(name: str, lines: list[Line]) -> dict[str, Result]:
    """Returns the results of an experiment that exist, by the name of the trials and of the test set."""
    groups, by_label = experiments(lines)[name], dict[str, Result]()
    for group, trials in groups.items():
        ran = [line for trial in trials if (line := trial.line(lines))]
        for part in ran[0]["scores"] if ran else ():
            label = part if len(groups) == 1 else group if part in ("test", "dev") else f"{group}, {part}"
            scores = [line["scores"][part] for line in ran]
            samples = np.array([score["samples"] for score in scores])  # by seed and sample of sentences
            # Equal numbers of seeds get equal samples of them, so that differences are of pairs.
            seeds = np.random.default_rng(1).integers(0, len(ran), samples.shape)
            value = np.mean([score.get("bleu", score.get("f1")) for score in scores])
            by_label[label] = Result(ran, float(value), np.take_along_axis(samples, seeds, 0).mean(axis=0))
    return by_label


def column_of(line: Line, name: str) -> float | None:
    """Returns a field of a line or of its trial. `core_hours` is the measured time of its FLOP on one core."""
    fields = line | line["trial"]
    if name == "core_hours" and "flop" in line:
        return fields["flop"] / KINDS[fields.get("model", BASE.model)].flops_per_second / 3_600
    return fields.get(name)


def crossing(a: list[Result], b: list[Result], marks: Sequence[int]) -> tuple[float, float, float, float]:
    """Returns where learning curve a passes b for good: the updates, their interval, and the share of samples that do.

    Between two marks, the difference is linear in the logarithm of the updates. Infinity means at no mark.
    """
    values = np.array([[x.value - y.value] for x, y in zip(a, b, strict=True)])
    differences = np.concatenate([values, [x.samples - y.samples for x, y in zip(a, b, strict=True)]], axis=1)
    crossings = list[float]()
    for column in differences.T:
        below = np.flatnonzero(column <= 0)
        if not below.size:
            crossings.append(marks[0])
        elif (i := below[-1]) == len(marks) - 1:
            crossings.append(math.inf)
        else:
            share = -column[i] / (column[i + 1] - column[i])
            crossings.append(float(marks[i] * (marks[i + 1] / marks[i]) ** share))
    value, *samples = crossings
    low, high = np.percentile(samples, (2.5, 97.5), method="nearest")
    return value, float(low), float(high), float(np.isfinite(samples).mean())


def crossings(by_label: dict[str, Result]) -> str:
    """Returns where the Transformer's learning curve passes each other kind's, in Markdown."""
    text = ""
    updates = lambda value: f"{value:,.0f}" if math.isfinite(value) else f"more than {MARKS[-1]:,}"  # noqa: E731
    for kind in ("lstm", "conv"):
        ours, theirs = ([f"{name}, {mark:,} updates" for mark in MARKS] for name in ("transformer", kind))
        if {*ours, *theirs} <= by_label.keys():
            a, b = ([by_label[label] for label in labels] for labels in (ours, theirs))
            value, low, high, share = crossing(a, b, MARKS)
            text += f"- the Transformer passes {kind} for good after {updates(value)} updates"
            text += f" [{updates(low)}, {updates(high)}], and in {share:.0%} of the samples at all\n"
    return text


def verdict(claim: str, by_label: dict[str, Result]) -> tuple[str, str]:
    """Returns whether a claim holds, and the difference with its interval."""
    first, second = re.split(" [>=] ", claim)
    if not {first, second} <= by_label.keys():
        return NOT_RUN, ""
    a, b = by_label[first], by_label[second]
    low, high = bounds(a.samples - b.samples)
    holds = low > 0 if " > " in claim else low <= 0 <= high
    return HOLDS if holds else FAILS, f"{a.value - b.value:+.2f} [{low:.2f}, {high:.2f}], "


def verdicts(name: str, by_label: dict[str, Result]) -> tuple[str, dict[str, tuple[str, str]]]:
    """Returns the outcome of an experiment, and the verdict on each of its claims."""
    claims = {claim: verdict(claim, by_label) for claim in CLAIMS[name]}
    states = [state for state, _ in claims.values()]
    outcome = min(states, key=(NOT_RUN, FAILS, HOLDS).index, default="for the other experiments")
    return PARTLY if outcome == NOT_RUN and by_label else outcome, claims


def render(name: str, lines: list[Line]) -> str:
    """Returns the verdicts, the table and the picture of an experiment in Markdown."""
    by_label, columns = results(name, lines), COLUMNS.get(name, ("perplexity",))
    if not by_label:
        return f"**{NOT_RUN.capitalize()}.**\n"
    outcome, claims = verdicts(name, by_label)
    text = f"**{outcome.capitalize()}.**\n\n"
    text += "".join(f"- {claim}: {difference}{state}\n" for claim, (state, difference) in claims.items())
    if name == "curves":
        text += crossings(by_label)
    score = SCORES.get(name, "BLEU")
    rows = [["", "seeds", score, *(column.replace("_", " ") for column in columns)], ["---"] * (3 + len(columns))]
    for label, (of_seeds, value, samples) in by_label.items():
        low, high = bounds(samples)
        values = {column: [column_of(line, column) for line in of_seeds] for column in columns}
        means = {column: np.mean(np.array(of_all)) for column, of_all in values.items() if None not in of_all}
        cells = [f"{means[column]:{FORMATS.get(column, '.2f')}}" if column in means else "" for column in columns]
        rows.append([label, str(len(of_seeds)), f"{value:.2f} [{low:.2f}, {high:.2f}]", *cells])
    text += "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{text}\n![{score} by trial](claims-{name}.png)\n"


def summary(lines: list[Line]) -> str:
    """Returns a table of the outcomes of all experiments that compare."""
    text = "| experiment | outcome | comparisons that hold | that ran |\n| --- | --- | --- | --- |\n"
    for name in filter(CLAIMS.get, sorted(NAMES)):
        outcome, claims = verdicts(name, results(name, lines))
        states = [state for state, _ in claims.values()]
        ran = len(states) - states.count(NOT_RUN)
        text += f"| `{name}` | {outcome} | {states.count(HOLDS)} | {ran} of {len(states)} |\n"
    return text


def rewritten(page: str, lines: list[Line]) -> str:
    """Returns the page with the results of these lines, each between a comment with its name and `<!-- end -->`."""
    for name in ("summary", *NAMES):
        text = summary(lines) if name == "summary" else render(name, lines)
        head, rest = page.split(f"<!-- {name} -->\n")
        page = f"{head}<!-- {name} -->\n{text}{rest[rest.index('<!-- end -->') :]}"
    return page


def draw(name: str, by_label: dict[str, Result], path: Path) -> None:
    """Draws the scores of an experiment with their intervals, as bars or against what they cost."""
    import_extra("matplotlib", "pictures", "a picture").use("Agg")
    import matplotlib.pyplot as plt

    columns = AXES.get(name, ("",))
    figure, axes = plt.subplots(1, len(columns), figsize=(8, 5), squeeze=False, layout="constrained")
    for axis, column in zip(axes[0], columns, strict=True):
        for kind in {label.split(",")[0]: None for label in by_label} if column else ("",):
            chosen = {label: result for label, result in by_label.items() if label.startswith(kind)}
            values = [result.value for result in chosen.values()]
            errors = np.abs(np.transpose([bounds(result.samples) for result in chosen.values()]) - values)
            costs = [np.mean([column_of(line, column) or 0 for line in one.lines]) for one in chosen.values()]
            axis.errorbar(
                costs if column else [*chosen], values, errors, fmt="o-" if column else "o", capsize=3, label=kind
            )
        axis.set_ylabel(SCORES.get(name, "BLEU"))
        axis.tick_params("x", rotation=0 if column else 90)
        if column:
            axis.set(xscale="log", xlabel=column)
            axis.legend()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main(argv: list[str] | None = None) -> None:
    options("page", __doc__, package="examples.claims").parse_args(argv)
    lines = read(RESULTS)
    write_text(PAGE, rewritten(PAGE.read_text(encoding="utf-8"), lines))
    for name in NAMES:
        if by_label := results(name, lines):
            draw(name, by_label, PAGE.with_name(f"claims-{name}.png"))
    print(f"written: {PAGE}")


if __name__ == "__main__":
    run_program(main)
