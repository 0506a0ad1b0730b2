"""The table of search options, and its ranges."""

import contextlib
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tf_transformer.config import BadInput
from tf_transformer.decoding.beams import RULES
from tf_transformer.decoding.search import OPTIONS
from tf_transformer.decoding.search_options import LONGEST, SEARCH_OPTIONS, SearchOptions, request_options
from tf_transformer.serving.contract import CONTRACT

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("values", "highest", "expected"),
    [
        ({"beam_size": np.int32(16)}, {}, ""),
        ({"beam_size": 17}, {}, "beam_size: expected 1 to 16, got 17"),
        ({"beam_size": 17}, {"beam_size": 23}, ""),
        ({"beam_size": 3}, {"beam_size": 2}, "beam_size: expected 1 to 2, got 3"),
        ({"beam_size": 2.5}, {}, "beam_size: expected a whole number, got 2.5"),
        ({"beam_size": math.inf}, {"beam_size": math.inf}, "beam_size: expected a whole number, got inf"),
        ({"length_penalty": 5.1}, {}, "length_penalty: expected 0 to 5, got 5.1"),
        ({"length_penalty": math.nan}, {"length_penalty": math.inf}, "length_penalty: expected at least 0, got nan"),
        ({"max_source_length": 10**9}, {}, ""),
        ({"min_length": 5, "max_length": 5}, {}, ""),
        ({"max_length": 5, "min_length": 9}, {}, "min_length: expected 0 to 5, got 9"),
    ],
)
def test_ranges_of_a_request(values, highest, expected):
    """`test_values.py` tests those of Python."""
    with contextlib.nullcontext() if not expected else pytest.raises(BadInput, match=f"^{expected}$"):
        request_options(values, highest)


def test_the_contracts_tables_are_this_one():
    """Options of a request, then those that an export fixes."""
    contract = (ROOT / "savedmodels/README.md").read_text(encoding="utf-8")
    assert f"\n## The contract, version {CONTRACT}\n" in contract
    tables = re.findall(r"^\| option \| dtype .*\n\|[-|]+\|\n((?:\|.*\n)+)", contract, re.MULTILINE)
    for table, request in zip(tables, (True, False), strict=True):
        assert table.splitlines() == [
            f"| `{option.name}` | {option.dtype} | {option.default} | {option.range()} | {option.doc} |"
            for option in SEARCH_OPTIONS.values()
            if ("request" in option.where) == request
        ]


def test_defaults_are_valid_in_a_request():
    for name, option in SEARCH_OPTIONS.items():
        assert option.doc and request_options({name: np.float64(option.default)}) == {name: option.default}
        assert type(option.cast(np.float64(option.default))) is type(option.default)
    assert SEARCH_OPTIONS["patience"].cast("inf") == math.inf  # as in JSON
    assert SearchOptions(extra_length=10**400, max_source_length=2**31).max_source_length == 2**30
    assert SearchOptions(extra_length=10**400).extra_length == LONGEST


def test_a_search_takes_options_of_translators_and_requests():
    """All of them are per row."""
    by_row = [
        name for name, option in SEARCH_OPTIONS.items() if "translator" in option.where and "request" in option.where
    ]
    assert list(OPTIONS) == [*by_row, "patience"]
    assert set(RULES) < set(OPTIONS)
