"""Table 3: its rows, the paper's figures, and a table and a plot of figures measured here."""

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.utils.files import write_text
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.terminal import say

PAPER = {  # Table 3: perplexity and BLEU of newstest2013, millions of parameters where they differ from base
    "base": (4.92, 25.8, 65),
    "A_h1": (5.29, 24.9, None),
    "A_h4": (5.00, 25.5, None),
    "A_h16": (4.91, 25.8, None),
    "A_h32": (5.01, 25.4, None),
    "B_dk16": (5.16, 25.1, 58),
    "B_dk32": (5.01, 25.4, 60),
    "C_N2": (6.11, 23.7, 36),
    "C_N4": (5.19, 25.3, 50),
    "C_N8": (4.88, 25.5, 80),
    "C_d256": (5.75, 24.5, 28),
    "C_d1024": (4.66, 26.0, 168),
    "C_ff1024": (5.12, 25.4, 53),
    "C_ff4096": (4.75, 26.2, 90),
    "D_drop0": (5.77, 24.6, None),
    "D_drop2": (4.95, 25.5, None),
    "D_ls0": (4.67, 25.3, None),
    "D_ls2": (5.47, 25.7, None),
    "E_learned": (4.92, 25.7, None),
    "big": (4.33, 26.4, 213),
}
# Changes to base. Rows keep their ratios to base.
SCALES: dict[str, dict[str, Any]] = {
    "paper": {},
    "multi30k": {
        "num_layers": 3,
        "d_model": 128,
        "d_ff": 512,
        "max_length": 256,
        "vocab_size": 4_000,
    },
}
# Formats in Markdown, by column.
COLUMNS = {
    "row": "",
    "what differs": "",
    "steps": ",",
    "perplexity": ".2f",
    "BLEU": ".2f",
    "parameters": ",",
    "paper's perplexity": ".2f",
    "paper's BLEU": ".1f",
    "paper's parameters (millions)": "",
}


def chosen(names: str) -> list[str]:
    """Returns the rows with these names or group letters, in the table's order."""
    choices = [name.strip() for name in names.split(",")]
    unknown = [name for name in choices if name not in ("all", *PAPER, *"ABCDE")]
    if unknown:
        raise BadInput(f"rows: expected all, A to E, or {', '.join(PAPER)}; got {', '.join(unknown)}")
    return [row for row in PAPER if {"all", row, row.split("_")[0]} & set(choices)]


def scaled(row: str, scale: str) -> TransformerConfig:
    """Returns the configuration of a row of Table 3 for a base of another size, with the same ratios to base."""
    paper, varied = PRESETS["base"], PRESETS[row]
    base = dataclasses.replace(paper, **SCALES[scale])
    changes = {}
    for field in dataclasses.fields(paper):
        value = getattr(varied, field.name)
        if value == getattr(paper, field.name):
            continue
        if field.name == "d_k":
            value = value * (base.d_model // base.num_heads) // (paper.d_model // paper.num_heads)
        elif isinstance(value, int):
            value = value * getattr(base, field.name) // getattr(paper, field.name)
        changes[field.name] = value
    return dataclasses.replace(base, **changes)


def difference(row: str, scale: str) -> str:
    """Describes the differences of a row from base."""
    config, base = scaled(row, scale).to_dict(), scaled("base", scale).to_dict()
    return ", ".join(f"{name} {value}" for name, value in config.items() if value != base[name])


def line_of(row: str, scale: str, measurements: dict[str, Any]) -> dict[str, Any]:
    """Returns a line of the table.

    Args:
        row: Name of the row.
        scale: Size of base.
        measurements: "steps", "dev_perplexity", "dev_bleu" and "parameters".
    """
    perplexity, bleu, millions = PAPER[row]
    ours = (measurements[name] for name in ("steps", "dev_perplexity", "dev_bleu", "parameters"))
    paper = (perplexity, bleu, millions or PAPER["base"][2])
    return dict(zip(COLUMNS, (row, difference(row, scale), *ours, *paper), strict=True))


def as_markdown(results: list[dict[str, Any]]) -> str:
    lines = [[*COLUMNS], ["---"] * len(COLUMNS)]
    lines += [[f"{line[name]:{form}}" for name, form in COLUMNS.items()] for line in results]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write(lines: list[dict[str, Any]], folder: Path) -> None:
    """Writes the table as CSV, as Markdown and as a plot, each atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_text(folder / "table3.csv", text.getvalue())
    write_text(folder / "table3.md", as_markdown(lines))
    draw(lines, folder / "table3.png")


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Plots the differences in perplexity and BLEU of each row from base, next to the paper's."""
    try:
        import_extra("matplotlib", "pictures", "no picture, which").use("Agg")
    except BadInput as error:
        say(str(error))
        return
    import matplotlib.pyplot as plt

    base = next((line for line in results if line["row"] == "base"), results[0])
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.32 * len(results) + 1.6), sharey=True, layout="constrained")
    heights = range(len(results))
    for axis, name, better in zip(axes, ("perplexity", "BLEU"), ("left", "right"), strict=True):
        for column, shift, color, label in (
            (name, -0.17, "#0072B2", "here"),
            (f"paper's {name}", 0.17, "#E69F00", "paper"),
        ):
            values = [line[column] - base[column] for line in results]
            axis.barh([height + shift for height in heights], values, 0.34, color=color, label=label)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(f"{name}, difference from {base['row']} ({better} is better)", fontsize=10)
    labels = [f"{line['row']}  ({line['what differs']})" if line["what differs"] else line["row"] for line in results]
    axes[0].set_yticks(list(heights), labels, fontsize=8)
    axes[0].invert_yaxis()
    axes[1].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
