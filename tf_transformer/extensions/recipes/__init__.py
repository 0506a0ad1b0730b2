"""Recipes: casing and noise, terms of a glossary, choice among several outputs."""

from tf_transformer.extensions.recipes.reranking import closest, mbr, rerank, reverse_scores
from tf_transformer.extensions.recipes.rewriting import NoisySource, TermSource, annotate, read_glossary

__all__ = ["NoisySource", "TermSource", "annotate", "closest", "mbr", "read_glossary", "rerank", "reverse_scores"]
