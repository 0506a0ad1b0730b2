"""Plots results: bars from the lines of `benchmarks.compare --out`, curves from a growth table, losses of runs."""

import argparse
import csv
import json
from pathlib import Path

from benchmarks import common


def main(argv=None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.draw", description=__doc__)
    parser.add_argument(
        "measured", nargs="+", type=Path, help="JSON lines (.jsonl), a growth table (.csv), or directories of runs"
    )
    parser.add_argument("picture", type=Path, help="output file, .png or .svg")
    args = parser.parse_args(argv)
    table, *others = args.measured
    if table.is_dir():
        losses({run.name: _read_csv(run / "history.csv") for run in args.measured}, args.picture)
    elif others:
        parser.error(f"expected one table, got {len(args.measured)}")
    elif table.suffix == ".csv":
        curves(_read_csv(table), args.picture)
    else:
        kinds = _kinds_of_work(map(json.loads, table.read_text(encoding="utf-8").splitlines()))
        bars([row for lines in kinds.values() for row in common.summary(lines)], args.picture)


def bars(rows, path: Path) -> None:
    """Plots a group of bars, longest first, for each kind of work in the rows of `common.summary`."""
    plt = _pyplot()
    kinds = _kinds_of_work(rows)
    figure, axes = plt.subplots(len(kinds), 1, figsize=(8, 0.8 + 0.4 * len(rows) + 0.7 * len(kinds)), squeeze=False)
    for axis, ((benchmark, config, sentences, dtype), group) in zip(axes[:, 0], kinds.items(), strict=True):
        group = sorted(group, key=lambda row: row["tokens_per_second"])
        names = [f"{row['engine']} {row.get('mode') or ''} {row['dtype']}".replace(" default", "") for row in group]
        rates = [row["tokens_per_second"] for row in group]
        colors = ["tab:orange" if row["engine"] == common.OURS else "tab:gray" for row in group]
        axis.barh(names, rates, color=colors)
        axis.bar_label(axis.containers[0], [f"{rate:,.0f}" for rate in rates], padding=3)
        axis.margins(x=0.1)
        request = f", {sentences} sentences" if sentences else ""
        axis.set_title(f"{benchmark}, {config}, {dtype}{request}: tokens/s", loc="left", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    _save(figure, path)


def _kinds_of_work(rows) -> dict[tuple, list[dict]]:
    """Groups rows by benchmark, configuration, number of sentences and precision."""
    kinds: dict[tuple, list[dict]] = {}
    for row in rows:
        dtype = "float32" if row["dtype"] == "float32" else "bfloat16 or int8"
        kinds.setdefault((row["benchmark"], row["config"], row.get("sentences"), dtype), []).append(row)
    return kinds


def curves(rows, path: Path) -> None:
    """Plots time, and memory if measured, against each varied size: the rows of `benchmarks.growth`."""
    plt = _pyplot()
    series: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        series.setdefault((row["task"], row["varied"]), []).append(row)
    lines, columns = -(-len(series) // 2), min(len(series), 2)
    figure, axes = plt.subplots(lines, columns, figsize=(4.5 * columns, 2.6 * lines), squeeze=False)
    for axis in axes.flat[len(series) :]:
        axis.set_visible(False)
    for axis, ((task, varied), points) in zip(axes.flat, series.items(), strict=False):
        values = [float(point["value"]) for point in points]
        axis.plot(values, [float(point["milliseconds"]) for point in points], ".-", color="tab:orange")
        axis.set_xlabel(varied)
        axis.set_ylabel("ms")
        axis.set_ylim(0)
        axis.set_title(task, loc="left", fontsize=10)
        if points[0]["mib"]:
            memory = axis.twinx()
            memory.plot(values, [float(point["mib"]) for point in points], ".:", color="tab:gray")
            memory.set_ylabel("MiB per request")
            memory.set_ylim(0)
    _save(figure, path)


def layer_types(rows, labels: dict[str, str], path: Path) -> None:
    """Plots time and memory of each layer against length and width, on log scales: rows of `benchmarks.layer_types`."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(10, 8))
    units = {"milliseconds": "ms", "mib": "MiB"}
    for column, varied in zip(axes.T, ("n", "d"), strict=True):
        for axis, (measured, unit) in zip(column, units.items(), strict=True):
            for layer, label in labels.items():
                points = [point for point in common.least_values(rows, layer, varied, measured) if point[1]]
                axis.loglog([size for size, _ in points], [value for _, value in points], ".-", base=2, label=label)
            fixed = {row["d" if varied == "n" else "n"] for row in rows if row["varied"] == varied}
            axis.set_title(f"{'d' if varied == 'n' else 'n'} = {', '.join(map(str, fixed))}", loc="left", fontsize=10)
            axis.set_xlabel(varied)
            axis.set_ylabel(unit)
            axis.grid(alpha=0.3)
    axes[0, 1].legend(fontsize=8, loc="upper left")
    _save(figure, path)


def losses(histories: dict[str, list[dict]], path: Path) -> None:
    """Plots training and dev loss against the step, from the history.csv of each run."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5))
    for axis, name, title in zip(axes, ("loss", "val_loss"), ("training", "dev set"), strict=True):
        for run, history in histories.items():
            axis.plot([int(row["step"]) for row in history], [float(row[name]) for row in history], ".-", label=run)
        axis.set_xlabel("step")
        axis.set_ylabel("loss, nats per token")
        axis.set_title(title, loc="left", fontsize=10)
        axis.legend()
    _save(figure, path)


def _read_csv(path: Path) -> list[dict]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _pyplot():
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
