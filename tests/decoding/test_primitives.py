"""Few shapes serve all sizes where a function is compiled for each shape."""

import pytest

from tf_transformer.decoding import primitives
from tf_transformer.decoding.primitives import rounded


@pytest.mark.parametrize("step, most", [(2, None), (4, None), (4, 64), (4, 60), (2, 257)])
def test_sizes_are_rounded_up_to_few(step, most, monkeypatch):
    sizes = range(1, (most or 1_000) + 1)
    monkeypatch.setattr(primitives, "BACKEND", "torch")
    assert [rounded(size, step, most) for size in sizes] == [*sizes]
    monkeypatch.setattr(primitives, "BACKEND", "jax")
    result = [rounded(size, step, most) for size in sizes]
    assert all(size <= one < step * size or one == size for size, one in zip(sizes, result, strict=True))
    assert result == sorted(result) and len(set(result)) <= 11 and max(result) == (most or 1_024)
