"""Recipes for better translations: choice among several outputs."""

from tf_transformer.extensions.recipes.reranking import closest as closest
from tf_transformer.extensions.recipes.reranking import mbr as mbr
from tf_transformer.extensions.recipes.reranking import rerank as rerank
from tf_transformer.extensions.recipes.reranking import reverse_scores as reverse_scores
