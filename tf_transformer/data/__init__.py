"""Parallel text as batches of ids: `tt.data`."""

from tf_transformer.data.datasets import (
    check_text_pairs,
    dataset,
    for_replicas,
    read_text_pairs,
    text_pairs,
    token_batches,
)

__all__ = ["check_text_pairs", "dataset", "for_replicas", "read_text_pairs", "text_pairs", "token_batches"]
