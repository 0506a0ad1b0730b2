"""Every checked option accepts hostile values or raises a one-line `BadInput` that names it."""

import dataclasses
import decimal
import fractions
import inspect
import json
import math
import os
import pkgutil
import re
import string
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

import tf_transformer as tt
from tf_transformer.decoding.search_options import SearchOptions
from tf_transformer.serving.contract import Export
from tf_transformer.serving.formats import publish
from tf_transformer.utils.values import MOST, Count, Fact, Seed, checked, convert, documentation, in_32_bits
from trainers import costs

ROOT = Path(__file__).parents[2]
HOSTILE = [
    *(True, False, None, 0, 1, -1, 2.0, 1e5, 512.5, 0.5, 1 - 2**-60, 1e-300, 1e300, math.nan, math.inf, -math.inf),
    *(2**31 - 1, 2**31, 2**63, -(2**40), 10**400, -(10**400), 10**5000, 1j, fractions.Fraction(4, 2)),
    *(np.int64(2), np.int8(-1), np.uint64(2**64 - 1), np.float32(39.6), np.float64("nan"), np.bool_(True)),
    *(np.array(3), np.zeros((40, 40)), np.array("x"), decimal.Decimal(2), "16", "", "two\nlines", b"7"),
    *([], [1], (), {}, {"a": 1}, object(), int, lambda: 1),
]
# Dataclasses that only the package creates, and a base class.
RETURNED = {"Score", "SearchOption", "Summary", "HeldOut", "RewrittenSource"}


def kinds_of(annotation):
    """Returns the members of a union, or the annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for member in typing.get_args(annotation) for kind in kinds_of(member)]
    return [annotation]


def is_option(annotation):
    """Returns whether it is a number, a flag or a choice."""
    origins = (typing.Annotated, typing.Literal)
    return any(kind in (int, float, bool) or typing.get_origin(kind) in origins for kind in kinds_of(annotation))


def options_of(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.annotation for p in parameters if is_option(p.annotation)}


def is_checked(function):
    """Returns whether `values.checked` decorates it: its code is in values.py."""
    return Path(function.__code__.co_filename).name == "values.py"


def is_plain(value):
    return type(value) in (int, float, bool, str, type(None))


def members():
    """Returns every class and function on the API's pages or among the names of `tt`, by its full name."""
    pages = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs/reference/api").glob("*.md")))
    names = re.findall(r"^::: (tf_transformer\.\S+)", pages, re.MULTILINE)
    names += [f"{module}.{name}" for name, module in tt._HOMES.items()]
    by_name = {}
    for name in names:
        if "extensions.beam" in name:  # test_beam.py has it
            continue
        owner = pkgutil.resolve_name(name)
        for member in vars(owner).values() if inspect.ismodule(owner) else [owner]:
            is_own = not inspect.ismodule(owner) or getattr(member, "__module__", "") == owner.__name__
            if (
                is_own
                and (inspect.isclass(member) or inspect.isfunction(member))
                and not member.__name__.startswith("_")
            ):
                by_name[f"{member.__module__}.{member.__qualname__}"] = member
    return sorted(by_name.items())


def functions():
    """Yields functions, constructors and methods that have options, with the class or function they belong to."""
    for name, owner in members():
        for part, function in vars(owner).items() if inspect.isclass(owner) else [("", owner)]:
            function = getattr(function, "__func__", function)
            is_made = part == "__init__" and dataclasses.is_dataclass(owner)  # checks its fields
            if inspect.isfunction(function) and not is_made and options_of(function):
                yield f"{name}.{part}".rstrip("."), owner, function


def dataclasses_of_users():
    """Returns those that check themselves, or have options."""
    kinds = [each for _, each in members() if dataclasses.is_dataclass(each) and each.__name__ not in RETURNED]
    has_options = {kind for kind in kinds if any(is_option(field.type) for field in dataclasses.fields(kind))}
    return [kind for kind in kinds if hasattr(kind, "__post_init__") or kind in has_options]


def outcome(option, act):
    """Returns [result of `act`], or [] for a one-line BadInput that names the option."""
    try:
        return [act()]
    except tt.BadInput as error:
        assert re.search(rf"\b{option}\b", str(error)), f"{option}: {error}"
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 400, error
        return []


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1e5, Count, 100_000),
        (np.int64(2), Count, 2),
        (fractions.Fraction(4, 2), Count, 2),
        (np.float32(0.5), Fact, 0.5),
        (np.str_("bpe"), typing.Literal["bpe", "unigram"], "bpe"),
        (np.bool_(False), bool, False),
        (["en", "de"], tuple[str, str], ("en", "de")),
        (7, int | Sequence[int] | None, 7),
        ((1, 2), int | Sequence[int] | None, (1, 2)),
        ({"a"}, Iterable[str], {"a"}),
        (None, Count | None, None),
        (2**32 - 1, Seed, 2**32 - 1),
    ],
)
def test_what_a_value_becomes(value, kind, expected):
    result = convert("x", value, kind)
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (512.5, Count, "a positive whole number below 2**31, got 512.5"),
        ("16", Count | None, "a positive whole number below 2**31 or None, got '16'"),
        (1, bool, "True or False, got 1"),
        ({"a": 1}, list, "a list, got {'a': 1}"),
        ("words", typing.Literal["bpe", "unigram"] | None, "'bpe', 'unigram' or None, got 'words'"),
        ("a.en", Sequence[str], "a list, got 'a.en'"),
        (["a"], tuple[str, str], "a list of 2, got ['a']"),
        ({"a"}, Sequence[str], "a list, got {'a'}"),
        (("a", "b"), tuple[list[str], Sequence[str]], "a list of 2 lists, got ('a', 'b')"),
        (5, str | os.PathLike, "text or a path, got 5"),
        (string.Formatter(), str, "text, got a Formatter"),
        (np.zeros((2, 2)), int, "a whole number, got array([[0., 0.], [0., 0.]])"),
        pytest.param(10**5000, Count, "a positive whole number below 2**31, got a value of type int", id="huge"),
        (math.nan, Fact, "text or a finite number, got nan"),
        ("y" * 999, float, f"a finite number, got '{'y' * 96}..."),
    ],
)
def test_errors_of_invalid_values(value, kind, message):
    with pytest.raises(tt.BadInput) as error:
        convert("x", value, kind)
    assert str(error.value) == f"x: expected {message}"


def test_checked_keeps_the_errors_of_wrong_calls():
    @checked
    def double(x: Count, times: float = 2) -> float:
        """It doubles."""
        return x * times

    assert double(np.int8(3)) == 6 and double.__doc__ == "It doubles."
    assert list(inspect.signature(double).parameters) == inspect.getfullargspec(double).args == ["x", "times"]
    with pytest.raises(TypeError, match=r"double\(\) missing 1 required positional argument: 'x'"):
        double()


def test_every_whole_number_is_a_seed():
    seeds = [0, 2**32 - 1, 2**32, 2**40, -1, -(2**32), 10**30, 10**5000]
    assert [in_32_bits(seed) for seed in seeds[:2]] == seeds[:2]
    assert all(0 <= in_32_bits(seed) < 2**32 for seed in seeds)
    assert len({in_32_bits(seed) for seed in seeds}) == len(seeds)
    assert tt.Recipe(seed=2**40).seed == in_32_bits(2**40) == 1_273_766_196  # must never change


COUNTS, POSITIVES = ([1, MOST], [0, MOST + 1, 2.5, "7"]), ([2e-38, 3e38], [0, -0.1, 1e-38, math.inf, math.nan])
NATURALS, RATES, PARTS = ([0, MOST], [-1, MOST + 1]), ([0, 0.999], [-0.1, 1, 1.5, None]), ([1, 1_024], [0, 1_025, True])
RANGES = {  # for every field of a user's configuration: valid values, and the nearest invalid ones
    tt.TransformerConfig: {
        "num_layers": ([1, 10_000], [0, 10_001, True]),
        "num_decoder_layers": ([None, 1, 10_000], [0, 10_001]),
        "norm_first": ([True, False], [1, "yes"]),
        "activation": (["relu", "gelu", "swish", "silu"], ["tanh", 7]),
        **dict.fromkeys(("d_model", "d_ff", "num_heads", "max_length", "vocab_size"), COUNTS),
        **dict.fromkeys(("d_k", "d_v"), COUNTS),
        **dict.fromkeys(("dropout", "attention_dropout", "label_smoothing"), RATES),
        "positions": (["learned", "sinusoidal"], ["relative", 7]),
    },
    tt.Recipe: {
        **dict.fromkeys(("steps", "epochs", "eval_every", "early_stopping_patience"), (COUNTS[0] + [None], COUNTS[1])),
        "metric": (["TER", None], [7, ["TER"]]),
        "average": (["last", "best"], ["first", None]),
        "average_last": (COUNTS[0] + [None], COUNTS[1]),
        **dict.fromkeys(("batch_tokens", "warmup_steps", "dev_sentences"), COUNTS),
        "cooldown_steps": NATURALS,
        "ema_momentum": (RATES[0] + [None], [value for value in RATES[1] if value is not None]),
        "learning_rate_factor": POSITIVES,
        **dict.fromkeys(("learning_rate", "clip_norm"), (POSITIVES[0] + [None], POSITIVES[1])),
        "tokenizer": (["bpe", "unigram"], ["words", None]),
        "mixed_precision": (["bfloat16", "float16", None], ["float32", 16]),
        "num_microbatches": PARTS,
        "on_nan": (["stop", "skip"], ["go on", None]),
        "jit_compile": (["auto", "on", "off"], [True, "yes"]),
        "seed": ([0, 2**32 - 1], [0.5, "1", None]),
    },
    SearchOptions: {
        "beam_size": PARTS,
        "length_penalty": ([0, 10], [-0.1, 10.1, math.nan, None]),
        **dict.fromkeys(("min_length", "no_repeat_ngram_size"), ([0, 2**30], [-1, 2.5, math.inf, "9"])),
        "max_length": ([1, 10_000], [0, 10_001]),
        "patience": ([0, 0.5, math.inf], [-0.1, math.nan, "inf"]),
        "n_best": PARTS,
        "extra_length": ([1, 10_000], [0, 1.5, math.inf]),
        "max_source_length": ([1, 2**30], [0, 1.5, "9"]),
    },
}


@pytest.mark.parametrize("kind", RANGES)
def test_ranges(kind):
    """Both ends of a range are valid and unchanged. The docstring has every field, since programs show it as help."""
    assert RANGES[kind].keys() == {field.name for field in dataclasses.fields(kind)} <= documentation(kind).keys()
    widths = {"d_k": 5, "d_v": 3} if kind is tt.TransformerConfig else {}  # else d_model is a multiple of num_heads
    for name, (valid, wrong) in RANGES[kind].items():
        for value in valid:
            assert getattr(kind(**widths | {name: value}), name) == value
        for value in wrong:
            with pytest.raises(tt.BadInput, match=f"^{name}: expected .*, got {re.escape(repr(value))}$"):
                kind(**{name: value})


@pytest.mark.extensions
def test_every_option_of_a_function_is_checked():
    public, checked_names = [getattr(tt, name) for name in tt.__all__], set()
    for name, owner, function in functions():
        if not is_checked(function):
            assert owner not in public or not name.endswith((owner.__name__, "__init__")), f"decorate {name}"
            continue
        checked_names.add(function.__qualname__)
        for option, annotation in options_of(function).items():
            has_other = any(not is_option(kind) and kind is not type(None) for kind in kinds_of(annotation))
            for value in HOSTILE:
                result = outcome(option, lambda o=option, v=value, a=annotation: convert(o, v, a))
                assert not result or has_other or is_plain(result[0]), (name, option, value, result)
    assert {"load", "text_pairs", "TextCorpus", "corpus", "Translator.n_best", "Tokenizer.train"} <= checked_names


@pytest.mark.extensions
def test_every_field_of_a_dataclass_is_checked(translator, tmp_path, monkeypatch):
    """On creation, a field becomes a Python value, which JSON can store, or raises."""
    monkeypatch.chdir(tmp_path)
    trees = tmp_path.with_name(f"{tmp_path.name}.trees")
    trees.write_text("(TOP (NN cat))")
    arguments = {
        "Batching": {"tokenizer": translator.tokenizer, "batch_tokens": 300, "seed": 1},
        "Corpus": {"train": tt.sources.MemorySource(["a"], ["b"]), "dev": (["a"], ["b"])},
        "Preparation": {"source": tt.sources.TextSource("a", "b"), "folder": tmp_path},
        "Filtered": {"source": tt.sources.MemorySource(["a"], ["b"]), "filters": tt.Filters()},
        "ParquetSource": {"pattern": "a", "columns": ("b", "c")},
        "Part": {"number": 0, "first": 0, "count": 1},
        "MemorySource": {"source": ["a"], "target": ["b"]},
        "ToySource": {"source": ["a"], "target": ["b"]},
        "TreebankSource": {"files": [trees]},
        "NoisySource": {"source": tt.sources.MemorySource(["a"], ["b"])},
        "TermSource": {"source": tt.sources.MemorySource(["a"], ["b"]), "glossary": {"a": "b"}},
        "TaggedSource": {"sources": {"<2de>": tt.sources.MemorySource(["a"], ["b"])}},
        "DirectedSource": {"source": tt.sources.MemorySource(["a"], ["b"]), "languages": ("en", "de")},
        "TextSource": {"source": "a", "target": "b"},
        "TfdsSource": {"name": "a"},
        "Training": {"steps": 1, "batch_tokens": 300},
        "DevText": {"metric": tt.Metric("BLEU"), "source": [], "references": []},
        "Metric": {"name": "BLEU"},
        "Trainer": {"path": tmp_path, "config": tt.PRESETS["tiny"], "corpus": tt.ToyCorpus()},
    }
    for kind in dataclasses_of_users():
        required = arguments.get(kind.__name__, {})
        for field in dataclasses.fields(kind):
            for value in HOSTILE:
                result = outcome(field.name, lambda k=kind, a=required | {field.name: value}: k(**a))
                if result and is_option(field.type):
                    stored = getattr(result[0], field.name)
                    assert is_plain(stored) and json.dumps(stored), (kind, field.name, value)
                    assert dataclasses.replace(result[0]) == result[0]
    assert not list(tmp_path.iterdir())


def cheap_calls(folder):
    """Returns functions and methods with options, and their other arguments."""
    tiny, x = tt.PRESETS["tiny"], np.ones((1, 1, 3, 2), "float32")
    return (
        (tt.toy_corpus.corpus, {}),
        (costs.activations, {"config": tiny, "source": 3, "target": 5}),
        (costs.forward_flops, {"config": tiny, "source": 3, "target": 5}),
        (costs.training_cost, {"hours": 1, "devices": 1, "tflops": 1}),
        (costs.training_flops, {"config": tiny, "pairs": 1}),
        (tt.layers.restricted_attention, {"query": x, "key": x, "value": x, "window": 2}),
        (publish, {"save": lambda path: None, "root": folder / "models"}),
    )


def ends(good):
    """Returns, of pairs (value, converted), the values of the smallest and largest number, and of no number."""
    numbers = sorted((result, index) for index, (_, result) in enumerate(good) if type(result) in (int, float))
    chosen = {index for _, index in (*numbers[:1], *numbers[-1:])}
    return [value for index, (value, result) in enumerate(good) if index in chosen or type(result) not in (int, float)]


def written(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_fact_of_an_export_goes_into_json(translator):
    for value in HOSTILE:
        for export in outcome("bleu", lambda value=value: Export(translator, bleu=value)):
            assert is_plain(export.metadata["bleu"]) and json.dumps({**export.metadata}, allow_nan=False)


def test_every_call_works_or_raises_bad_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call, arguments in cheap_calls(tmp_path):
        for option, annotation in options_of(call).items():
            outcomes = [(v, outcome(option, lambda o=option, v=v, a=annotation: convert(o, v, a))) for v in HOSTILE]
            for value in ends([(value, results[0]) for value, results in outcomes if results]):
                before = written(tmp_path)
                if not outcome(option, lambda c=call, a=arguments | {option: value}: c(**a)):
                    assert written(tmp_path) == before
