"""Recipes: casing and noise, terms of a glossary, choice among several outputs."""

from tf_transformer.extensions.recipes.reranking import closest as closest
from tf_transformer.extensions.recipes.reranking import mbr as mbr
from tf_transformer.extensions.recipes.reranking import rerank as rerank
from tf_transformer.extensions.recipes.reranking import reverse_scores as reverse_scores
from tf_transformer.extensions.recipes.rewriting import NoisySource as NoisySource
from tf_transformer.extensions.recipes.rewriting import TermSource as TermSource
from tf_transformer.extensions.recipes.rewriting import annotate as annotate
from tf_transformer.extensions.recipes.rewriting import read_glossary as read_glossary
