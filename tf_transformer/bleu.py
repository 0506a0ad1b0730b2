"""Scores of translations, all through sacreBLEU (Post 2018)."""

from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


class Score(NamedTuple):
    """A figure and what it takes to compare it."""

    value: float
    signature: str


def bleu(translations: list[str], references: list[str]) -> Score:
    """Cased BLEU on detokenised text, tokenised by 13a: 0 to 100."""
    metric = BLEU()
    return Score(metric.corpus_score(translations, [references]).score, str(metric.get_signature()))


def chrf(translations: list[str], references: list[str]) -> Score:
    """chrF2 (Popovic 2015): 0 to 100."""
    metric = CHRF()
    return Score(metric.corpus_score(translations, [references]).score, str(metric.get_signature()))
