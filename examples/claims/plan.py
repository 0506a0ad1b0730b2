"""All trials of the experiments, in the order in which they run, and estimates of their cost.

A trial is one training. Experiments share trials: the same settings are trained only once.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from examples.table3 import table as table3
from tf_transformer.config import PRESETS, TransformerConfig

RATES = (0.001, 0.002, 0.004)  # peaks of the learning rate among which each kind of model is tuned
BATCH_TOKENS, WARMUP = 1_024, 600
TREE_BATCH_TOKENS = 2_048
Line = dict[str, Any]  # one of results.jsonl


@dataclass(frozen=True)
class Trial:
    """Settings of a training. `described` are those that differ from the defaults.

    Attributes:
        model: Name in `variants.KINDS`, or "pcfg".
        config: Changes to the configuration of Table 3's base, or of `parsing_small` for a trial with trees.
        seed: Random seed of weights, dropout and order.
        rate: Peak of the learning rate. `None` means that of equation (3).
        warmup: Steps of the warm-up. The rate decays as after 600 steps.
        steps: Updates.
        checkpoints: Checkpoints to keep.
        words: Maximum number of source words of a training pair.
        trees: Number of training trees, for a parser.
    """

    model: str = "transformer"
    config: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    rate: float | None = None
    warmup: int = WARMUP
    steps: int = 2_000
    checkpoints: int = 4
    words: int | None = None
    trees: int | None = None

    @property
    def described(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value != getattr(BASE, name)}

    @property
    def configuration(self) -> TransformerConfig:
        base = PRESETS["parsing_small"] if self.trees else table3.scaled("base", "multi30k")
        return dataclasses.replace(base, **self.config)

    def line(self, lines: Iterable[Line]) -> Line | None:
        """Returns the trial's line, if it has run."""
        return next((line for line in lines if line["trial"] == self.described), None)


BASE = Trial()
DECODING = Trial(checkpoints=20)  # one run, decoded in many ways


def seeds(count: int, **settings: Any) -> list[Trial]:
    return [Trial(**settings, seed=seed) for seed in range(1, count + 1)]


def decoding(lines: list[Line]) -> dict[str, list[Trial]]:
    return {"one run": [DECODING]}


def regularization(lines: list[Line]) -> dict[str, list[Trial]]:
    rates = [("dropout", 0.1), ("dropout", 0.0), ("dropout", 0.2), ("label_smoothing", 0.0), ("label_smoothing", 0.2)]
    names = {"dropout": "dropout", "label_smoothing": "smoothing"}
    base = table3.scaled("base", "multi30k")
    return {
        "base (0.1, 0.1)" if getattr(base, name) == rate else f"{names[name]} {rate}": seeds(
            2, config={} if getattr(base, name) == rate else {name: rate}
        )
        for name, rate in rates
    }


def warmup(lines: list[Line]) -> dict[str, list[Trial]]:
    return {
        f"norm {'first' if first else 'after'}, {steps:,} steps": [
            Trial(config={"norm_first": True} if first else {}, warmup=steps)
        ]
        for first in (False, True)
        for steps in (0, 100, 600, 4_000)
    }


def positions(lines: list[Line]) -> dict[str, list[Trial]]:
    kinds: dict[str, dict[str, Any]] = {
        "sinusoids": {},
        "learned": {"config": {"positions": "learned"}},
        "none": {"model": "unordered"},
    }
    return {name: seeds(2, **settings, words=12) for name, settings in kinds.items()}


def scaling(lines: list[Line]) -> dict[str, list[Trial]]:
    return {
        f"d_k {d_k}, {'with' if model == 'transformer' else 'without'}": seeds(
            2, model=model, config={"num_heads": 2, "d_k": d_k}
        )
        for d_k in (16, 64, 256)
        for model in ("transformer", "unscaled")
    }


DISAGREE = ("A_h1", "C_N8", "D_drop2", "E_learned", "big")  # rows that disagreed with the paper, and get three seeds


def variations(lines: list[Line]) -> dict[str, list[Trial]]:
    base = table3.scaled("base", "multi30k").to_dict()

    def trials(row: str, count: int) -> list[Trial]:
        config = table3.scaled(row, "multi30k").to_dict()
        return seeds(count, config={name: value for name, value in config.items() if value != base[name]})

    first = {row: trials(row, 3) for row in ("base", *DISAGREE)}
    return first | {row: trials(row, 1) for row in table3.PAPER if row not in first}


LSTM: dict[str, Any] = {"num_layers": 2, "num_heads": 1}
CONV: dict[str, Any] = {"num_layers": 4, "num_heads": 1, "positions": "learned"}
# Configurations of about equal numbers of parameters, by size and kind
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "small": {
        "transformer": {"d_model": 64, "d_ff": 256},
        "lstm": LSTM | {"d_model": 84},
        "conv": CONV | {"d_model": 72},
    },
    "medium": {"transformer": {}, "lstm": LSTM | {"d_model": 180}, "conv": CONV | {"d_model": 150}},
    "large": {
        "transformer": {"d_model": 192, "d_ff": 768},
        "lstm": LSTM | {"d_model": 278},
        "conv": CONV | {"d_model": 228},
    },
}


def tuning(lines: list[Line]) -> dict[str, list[Trial]]:
    return {
        f"{kind}, rate {rate}": [Trial(model=kind, config=config, rate=rate)]
        for kind, config in SIZES["small"].items()
        for rate in RATES
    }


def tuned(kind: str, lines: list[Line]) -> float:
    """Returns the rate with the lowest perplexity on the dev set, or the middle one as long as nothing has run."""
    trials = [trial for name, (trial,) in tuning(lines).items() if name.startswith(f"{kind},")]
    perplexities = {trial.rate: line["perplexity"] for trial in trials if (line := trial.line(lines))}
    return min(perplexities, key=lambda rate: perplexities[rate]) if perplexities else RATES[1]  # type: ignore[return-value]


def cost(lines: list[Line]) -> dict[str, list[Trial]]:
    return {
        f"{kind}, {size}": seeds(2, model=kind, config=config, rate=tuned(kind, lines))
        for size, configs in SIZES.items()
        for kind, config in configs.items()
    }


PARSERS: dict[str, dict[str, Any]] = {
    "transformer": {},
    "lstm": LSTM | {"d_model": 154},
}  # about equal numbers of parameters


def parsing(lines: list[Line]) -> dict[str, list[Trial]]:
    trials = {}
    for trees in (1_000, 3_000, 10_000):
        trials[f"pcfg, {trees:,} trees"] = [Trial(model="pcfg", trees=trees)]
        for kind, config in PARSERS.items():
            settings = {"model": kind, "config": config, "rate": tuned(kind, lines), "steps": 3_000}
            trials[f"{kind}, {trees:,} trees"] = [Trial(trees=trees, **settings)]
    return trials


# The cheapest come first, and tuning before those that need it.
EXPERIMENTS: dict[str, Callable[[list[Line]], dict[str, list[Trial]]]] = {
    "decoding": decoding,
    "positions": positions,
    "warmup": warmup,
    "regularization": regularization,
    "tuning": tuning,
    "parsing": parsing,
    "scaling": scaling,
    "cost": cost,
    "table3": variations,
}
NEEDS = {"parsing": "tuning", "cost": "tuning"}


def trials_of(experiment: str, lines: list[Line], steps: int | None = None) -> list[Trial]:
    """Returns the trials of an experiment, and before them those that it needs. First seeds come first.

    `steps` replaces the steps of each.
    """
    needed = trials_of(NEEDS[experiment], lines, steps) if experiment in NEEDS else []
    groups = [*EXPERIMENTS[experiment](lines).values()]
    longest = max(map(len, groups))
    trials = [group[seed] for seed in range(longest) for group in groups if seed < len(group)]
    return needed + [dataclasses.replace(trial, steps=steps or trial.steps) for trial in trials]


SCORING = {True: 240.0, False: 60.0}  # seconds to score a parser or a translator, on one core
DECODINGS = 21  # of the experiment `decoding`


def estimate(trial: Trial) -> float:
    """Returns the estimated seconds of a trial on one core."""
    from examples.claims.variants import KINDS

    if trial.model == "pcfg":
        return 400.0
    kind, tokens = KINDS[trial.model], TREE_BATCH_TOKENS if trial.trees else BATCH_TOKENS
    source, target = (20, 70) if trial.trees else (16, 16)  # tokens of a sentence, about
    flops = 3 * trial.steps * tokens / target * kind.forward_flops(trial.configuration, source, target)
    decodings = DECODINGS if trial.checkpoints == DECODING.checkpoints else 1
    return flops / kind.flops_per_second + decodings * SCORING[bool(trial.trees)]
