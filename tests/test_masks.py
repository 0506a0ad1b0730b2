"""Masks are booleans, True = may be attended (section 3.2.3)."""

import numpy as np
import pytest
from conftest import array
from hypothesis import given
from hypothesis import strategies as st

from tf_transformer.masks import PAD_ID, as_key_mask, causal_mask, intersect, padding_mask


def test_padding_is_id_zero():
    assert PAD_ID == 0
    mask = array(padding_mask(np.array([[5, 3, 0], [7, 0, 0]])))
    assert mask.dtype == bool and np.array_equal(mask, [[1, 1, 0], [1, 0, 0]])


def test_a_query_attends_to_itself_and_earlier_positions():
    assert np.array_equal(array(causal_mask(3)), [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]])


@given(T=st.integers(1, 7), S=st.integers(1, 11), first=st.integers(0, 5))
def test_causal_mask_of_queries_after_the_first_keys(T, S, first):
    mask = array(causal_mask(T, S, first))
    assert mask.shape == (1, T, S) and mask.dtype == bool
    for t, s in np.ndindex(T, S):
        assert mask[0, t, s] == (s <= first + t)


def test_a_padding_mask_is_the_same_for_every_query():
    mask = np.array([[1, 0, 1], [0, 1, 1]])  # [B, S]
    attention_mask = array(as_key_mask(mask))
    assert attention_mask.dtype == bool and np.array_equal(attention_mask, mask[:, np.newaxis, :])
    assert as_key_mask(None) is None


@pytest.mark.parametrize("first", [None, False, True])
@pytest.mark.parametrize("second", [None, False, True])
def test_both_allows_what_neither_forbids(first, second):
    masks = [None if allowed is None else np.full((1, 2, 3), allowed) for allowed in (first, second)]
    mask = intersect(*masks)
    if first is None and second is None:
        assert mask is None
    else:
        assert np.all(array(mask) == (first is not False and second is not False))
