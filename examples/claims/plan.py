"""All trials of the experiments, and estimates of their cost. A trial is one training, which experiments may share."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from examples.table3 import table as table3
from tf_transformer.config import TransformerConfig
from tf_transformer.extensions import parsing

Line = dict[str, Any]  # one of results.jsonl
Groups = dict[str, list["Trial"]]  # trials that differ by seed, by name
WARMUP, BATCH_TOKENS, TREE_BATCH_TOKENS, CURVE_BATCH_TOKENS = 600, 1_024, 2_048, 2_048
MARKS = (500, 1_000, 2_000, 4_000, 8_000, 16_000)  # updates at which the models of a learning curve are scored
CURVES = "tatoeba-en-de"  # corpus of the learning curves, five times as many pairs as Multi30k
ROWS = {row: table3.scaled(row, "multi30k").to_dict() for row in table3.PAPER}
ROWS = {row: dict(config.items() - ROWS["base"].items()) for row, config in ROWS.items()}  # differences from base
LONGER = {  # settings whose verdict may hang on the number of updates
    "base": {},
    "dropout 0.0": {"dropout": 0.0},
    "label_smoothing 0.0": {"label_smoothing": 0.0},
}
DISAGREE = ("A_h1", "C_N8", "D_drop2", "E_learned", "big")  # rows that disagreed with the paper with one seed
RATES = (0.001, 0.002, 0.004, 0.008)  # peaks of the learning rate among which each kind of model is tuned
LSTM: dict[str, Any] = {"num_layers": 2, "num_heads": 1}
CONV: dict[str, Any] = {"num_layers": 4, "num_heads": 1, "positions": "learned"}
WIDTHS = {"small": (64, 84, 72), "medium": (96, 132, 110), "large": (128, 180, 150)}  # equal numbers of parameters
SIZES = {
    size: {
        "transformer": {"d_model": d, "d_ff": 4 * d},
        "lstm": LSTM | {"d_model": lstm},
        "conv": CONV | {"d_model": conv},
    }
    for size, (d, lstm, conv) in WIDTHS.items()
}
PARSERS: dict[str, dict[str, Any]] = {"transformer": {}, "lstm": LSTM | {"d_model": 154}}


@dataclass(frozen=True)
class Trial:
    """Settings of a training."""

    model: str = "transformer"  # name in `models.KINDS`, or "pcfg"
    config: dict[str, Any] = field(default_factory=dict)  # changes to Table 3's base, or with trees `parsing_small`
    seed: int = 1
    rate: float | None = None  # peak of the learning rate, by default that of equation (3)
    warmup: int = WARMUP  # steps. The rate always decays as after 600.
    steps: int = 2_000
    after: int = 0  # of these steps, those that another trial makes. This one continues its run.
    batch_tokens: int = BATCH_TOKENS
    corpus: str = "multi30k"
    checkpoints: int = 4  # to keep
    words: int | None = None  # maximum number of source words of a training pair
    trees: int | None = None  # number of training trees, for a parser

    @property
    def described(self) -> dict[str, Any]:
        """Settings that differ from the defaults, which identify the trial."""
        return {name: value for name, value in vars(self).items() if value != getattr(BASE, name)}

    @property
    def run(self) -> str:
        """Name of the directory of its run. Trials that continue each other share it."""
        settings = {name: value for name, value in self.described.items() if name not in ("steps", "after")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def configuration(self) -> TransformerConfig:
        base = parsing.PRESETS["parsing_small"] if self.trees else table3.scaled("base", "multi30k")
        return dataclasses.replace(base, **self.config)

    def line(self, lines: Iterable[Line]) -> Line | None:
        """Returns the trial's line, if it has run."""
        return next((line for line in lines if line["trial"] == self.described), None)


BASE = Trial()
ON_CURVES: dict[str, Any] = {"corpus": CURVES, "batch_tokens": CURVE_BATCH_TOKENS}
DECODED = 20  # checkpoints of the run that is decoded in many ways


def seeds(count: int, **settings: Any) -> list[Trial]:
    return [Trial(**settings, seed=seed) for seed in range(1, count + 1)]


def tuning() -> Groups:
    options = [
        {"model": kind, "config": config, "rate": rate} for kind, config in SIZES["small"].items() for rate in RATES
    ]
    return {f"{option['model']}, {option['rate']}": seeds(1, **option) for option in options}


def curve_tuning() -> Groups:
    """Returns one more rate than `tuning`, whose highest was the best of two kinds."""
    options = [
        {"model": kind, "config": config, "rate": rate}
        for kind, config in SIZES["small"].items()
        for rate in (*RATES[1:], 0.016)
    ]
    return {f"{one['model']}, {one['rate']}": seeds(1, **one, **ON_CURVES) for one in options}


def tuned(kind: str, lines: list[Line], groups: Groups | None = None) -> dict[str, Any]:
    """Returns a kind and its rate of the lowest perplexity on the dev set, or the middle one if none has run."""
    trials = [trial for (trial,) in (groups or tuning()).values() if trial.model == kind]
    ran = [(line["perplexity"], trial.rate) for trial in trials if (line := trial.line(lines))]
    return {"model": kind, "rate": min(ran)[1] if ran else RATES[1]}


def experiments(lines: list[Line]) -> dict[str, Groups]:
    """Returns the experiments, the cheapest first, and tuning before those that need it."""
    rates = [(name, rate) for name in ("dropout", "label_smoothing") for rate in (0.0, 0.2)]
    parsers = {kind: {"config": config, "steps": 1_500, **tuned(kind, lines)} for kind, config in PARSERS.items()}
    return {
        "decoding": {"one run": seeds(1, checkpoints=DECODED)},
        "positions": {
            "sinusoids": seeds(1, words=12),
            "learned": seeds(1, words=12, config=ROWS["E_learned"]),
            "none": seeds(1, words=12, model="unordered"),
        },
        "warmup": {
            f"norm {'first' if config else 'after'}, {steps:,} steps": seeds(1, config=config, warmup=steps)
            for config in ({}, {"norm_first": True})
            for steps in (0, 100, 600, 4_000)
        },
        "regularization": {"0.1": seeds(1)} | {f"{name} {rate}": seeds(1, config={name: rate}) for name, rate in rates},
        "tuning": tuning(),
        "parsing": {
            f"{kind}, {trees:,} trees": seeds(1, trees=trees, **({"model": kind} if kind == "pcfg" else parsers[kind]))
            for trees in (1_000, 3_000, 10_000)
            for kind in ("pcfg", *PARSERS)
        },
        "scaling": {
            f"d_k {d_k}, {model}": seeds(1, model=kind, config={"num_heads": 2, "d_k": d_k})
            for d_k in (16, 64, 256)
            for model, kind in (("scaled", "transformer"), ("unscaled", "unscaled"))
        },
        "cost": {
            f"{kind}, {size}": seeds(2, config=config, **tuned(kind, lines))
            for size, configs in SIZES.items()
            for kind, config in configs.items()
        },
        "curve_tuning": curve_tuning(),
        "curves": {
            f"{kind}, {steps:,} updates": seeds(
                2, config=config, steps=steps, after=after, **ON_CURVES, **tuned(kind, lines, curve_tuning())
            )
            for kind, config in SIZES["medium"].items()
            for after, steps in zip((0, *MARKS), MARKS, strict=False)
        },
        "longer": {
            f"{name}, {steps:,} updates": seeds(1, config=config, steps=steps)
            for steps in (2_000, 16_000)
            for name, config in LONGER.items()
        },
        "table3": {
            row: seeds(3 if row in ("base", *DISAGREE) else 1, config=ROWS[row])
            for row in sorted(ROWS, key=lambda row: row not in ("base", *DISAGREE))
        },
    }


NAMES = [*experiments([])]
RATES_OF = {"parsing": "tuning", "cost": "tuning", "curves": "curve_tuning"}  # experiments that need another's rates


def trials_of(name: str, lines: list[Line], steps: int | None = None) -> list[Trial]:
    """Returns the trials of an experiment in their order: first seeds first. `steps` replaces the steps of each."""
    needed = trials_of(rates, lines, steps) if (rates := RATES_OF.get(name)) else []
    trials = [trial for group in experiments(lines)[name].values() for trial in group]
    if name != "table3":  # whose first rows have all their seeds before the other rows
        trials.sort(key=lambda trial: trial.seed)
    trials = needed + [dataclasses.replace(trial, steps=steps, after=0) if steps else trial for trial in trials]
    return sorted(trials, key=lambda trial: trial.model != "pcfg")  # which needs no rate


def scoring(trial: Trial) -> float:
    """Returns the estimated seconds of the longest piece of work that is not resumed: to decode a test set."""
    return 400.0 if trial.model == "pcfg" else 240.0 if trial.trees else 60.0


def estimate(trial: Trial) -> float:
    """Returns the estimated seconds of a trial on one core."""
    from examples.claims.models import KINDS

    if trial.model == "pcfg":
        return scoring(trial)
    kind, tokens = KINDS[trial.model], TREE_BATCH_TOKENS if trial.trees else trial.batch_tokens
    source, target = (20, 70) if trial.trees else (16, 16)  # tokens of a sentence, about
    flops = 3 * (trial.steps - trial.after) * tokens / target * kind.forward_flops(trial.configuration, source, target)
    return flops / kind.flops_per_second + scoring(trial) * (21 if trial.checkpoints == DECODED else 1)
