"""Parallel text as batches of ids: `tt.data`."""

from tf_transformer.data.datasets import dataset, for_replicas, text_pairs, token_batches
from tf_transformer.utils.lines import check_text_pairs, read_text_pairs

__all__ = ["check_text_pairs", "dataset", "for_replicas", "read_text_pairs", "text_pairs", "token_batches"]
