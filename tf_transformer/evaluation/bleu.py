"""Scores of translations by sacreBLEU (Post 2018), and the metric to validate by.

Translations and references are strings in lists, arrays, columns of a table or open files, of the same length, at least
1. Pass several references of each text as a list of such lists, as in sacreBLEU: [all first ones, all second ones].
"""

import http.client
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args

from sacrebleu.metrics.base import Metric as SacreMetric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.utils import SACREBLEU_DIR

from tf_transformer.config import BadInput
from tf_transformer.utils.type_names import MetricName
from tf_transformer.utils.values import between, check_fields, checked, convert, shown

Texts = Iterable[str]
References = Texts | Iterable[Texts]
Samples = Annotated[int, between(1, 100_000)]

# Thai, Lao, Tibetan, Burmese, Khmer and the Tai scripts.
WITHOUT_SPACES = "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf]"


class Score(NamedTuple):
    """A score, with its signature and statistics."""

    value: float
    signature: str
    interval: float | None = None  # half of the 95 % confidence interval, by bootstrap
    p_value: float | None = None  # probability of at least such a difference from the first system by chance


def bleu(translations: Texts, references: References) -> Score:
    """Returns cased BLEU on detokenized text, 0 to 100.

    The script of most of the references chooses the tokenizer: zh for Chinese, ja-mecab for Japanese if MeCab is
    installed, char for Korean and for scripts without spaces such as Thai, Lao, Burmese and Khmer, and 13a for others.
    """
    return score(translations, references, "BLEU")


def score(translations: Texts, references: References, metric: MetricName = "BLEU") -> Score:
    """Returns the score by a metric's name: "BLEU", "chrF", "chrF++", "TER" or "spBLEU".

    Lower TER is better. For spBLEU, sacreBLEU downloads the tokenizer flores200 once.
    """
    translations, lists = check(translations, references)
    return _score(named_metric(convert("metric", metric, MetricName), lists[0]), translations, lists)


def paper_bleu(translations: Texts, references: References) -> Score:
    """Returns the paper's BLEU for English-German, with compounds split at hyphens, 0 to 100.

    On newstest2014 it is 0.7 to 1.0 above `bleu`. It tokenizes with 13a, whereas the authors used Moses.
    """
    return _score(_paper_metric(), *check(translations, references))


def chrf(translations: Texts, references: References) -> Score:
    """Returns chrF2 (Popovic 2015), 0 to 100."""
    return score(translations, references, "chrF")


@dataclass(frozen=True)
class Metric:
    """A metric to validate by, such as `tt.Metric("TER")` or `tt.Metric("loss", function, higher_is_better=False)`.

    Attributes:
        name: Name in logs and, as `dev_` and the name in lower case, in the history.
        function: Function of outputs, sources and references, lists of strings of the same length, that returns a
            number, or an object whose `value` is one. Defaults to sacreBLEU's metric of this name (`tt.bleu.score`).
        higher_is_better: Whether the best score is the highest. Defaults to true, except for sacreBLEU's TER.

    Raises:
        BadInput: If there is neither a function nor a metric of sacreBLEU with this name.
    """

    name: str
    function: Callable[[list[str], list[str], list[str]], Any] | None = None
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.function and self.name not in get_args(MetricName):
            names = ", ".join(get_args(MetricName))
            raise BadInput(f"name of a metric: expected one of {names}, or a function as well, got {shown(self.name)}")
        if self.higher_is_better is None:
            object.__setattr__(self, "higher_is_better", bool(self.function) or self.name != "TER")

    @property
    def column(self) -> str:
        """Name of the score in the history."""
        return f"dev_{self.name.lower()}"

    def score(self, outputs: list[str], sources: list[str], references: list[str]) -> float:
        """Returns the score of a dev set's outputs."""
        name: Any = self.name
        result = (self.function or (lambda *texts: score(texts[0], texts[2], name)))(outputs, sources, references)
        return float(convert(self.name, getattr(result, "value", result), float))

    def best_first(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the indices of a history's rows with this score, best first. Of equal ones, the earlier is first."""
        scored = [i for i, row in enumerate(rows) if self.column in row]
        # Sorting in reverse keeps the order of equal rows.
        return sorted(scored, key=lambda i: float(rows[i][self.column]), reverse=bool(self.higher_is_better))


def named_metric(name: str, references: list[str]) -> SacreMetric:
    """Returns sacreBLEU's metric of this name for such references."""
    if name == "spBLEU":
        try:
            return BLEU(tokenize="flores200")
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            file = f"{SACREBLEU_DIR}/models/flores200sacrebleuspm"
            raise BadInput(f"spBLEU: sacreBLEU cannot download or read {file}: {error}. Copy it there.") from error
    if name == "BLEU":
        return BLEU(tokenize=_tokenizers(references)[0])
    return {"chrF": CHRF(), "chrF++": CHRF(word_order=2), "TER": TER()}[name]


def metrics(references: list[str], more: Iterable[str] = ()) -> dict[str, SacreMetric]:
    """Returns the usual metrics for such references, and `more`, by name. BLEU is cased if not named otherwise."""
    metrics: dict[str, SacreMetric] = {f"BLEU {name}": BLEU(tokenize=name) for name in _tokenizers(references)}
    if "BLEU 13a" in metrics:  # the script has spaces between words
        metrics |= {
            "BLEU 13a lower-cased": BLEU(lowercase=True, tokenize="13a"),  # the Multi30k literature's
            "BLEU 13a, compounds split": _paper_metric(),
            "BLEU intl": BLEU(tokenize="intl"),
        }
    return metrics | {name: named_metric(name, references) for name in ("chrF", *more)}


@checked
def compare(
    systems: Mapping[str, Texts], references: References, samples: Samples = 1_000, more: Sequence[MetricName] = ()
) -> dict[str, dict[str, Score]]:
    """Scores systems by every metric of `metrics`, and compares them by paired bootstrap (Koehn 2004).

    The p-value is that of sacreBLEU: (1 + k) / (1 + samples), where k is the number of samples whose difference of
    scores is further from the samples' mean difference than the difference on all sentences is from 0. It is 1 if that
    difference is 0, as between equal outputs.

    Args:
        systems: Translations of the same sentences, by the system's name.
        references: Reference translations, or a list of several lists of them.
        samples: Number of bootstrap samples. SACREBLEU_SEED or 12345 is the seed.
        more: Names of more metrics, as in `score`.

    Returns:
        Scores by metric and system, with confidence intervals. Systems after the first have a p-value against it, which
        is about half of that of a two-sided test.
    """
    lists = _lists_of(references)
    outputs = {name: check(translations, lists)[0] for name, translations in systems.items()}
    scores = {}
    for metric_name, metric in metrics(lists[0], more).items():
        signatures, results = PairedTest(list(outputs.items()), {metric_name: metric}, lists, "bs", samples)()
        ((kind, signature),) = signatures.items()
        of_kind: Any = results[kind]
        scores[metric_name] = {
            # chrF and TER have intervals in NumPy's float32, which JSON has no number for.
            name: Score(float(result.score), str(signature), float(result.ci), _chance(result, of_kind[0]))
            for name, result in zip(systems, of_kind, strict=True)
        }
    return scores


def _chance(result: Any, first: Any) -> float | None:
    """Returns the p-value of a system against the first one, `None` for the first."""
    # Every sample differs by at least 0. sacreBLEU counts those that differ by more, so equal systems get 1 / samples.
    return 1.0 if result.p_value is not None and result.score == first.score else result.p_value


def check(translations: Texts, references: References) -> tuple[list[str], list[list[str]]]:
    """Returns the translations as a list, and one or several lists of references.

    Raises:
        BadInput: If they are not lists of strings, of different lengths, or empty.
    """
    translations, lists = list_of("translations", translations), _lists_of(references)
    for texts in lists:
        if not 0 < len(translations) == len(texts):
            count = f"got {len(translations):,} translations and {len(texts):,} references"
            raise BadInput(f"expected as many translations as references, and at least one; {count}")
    return translations, lists


def _lists_of(references: References) -> list[list[str]]:
    is_several = isinstance(references, list | tuple) and references and not isinstance(references[0], str | bytes)
    lists: Any = references if is_several else [references]
    return [list_of("references", texts) for texts in lists]


def list_of(name: str, texts: Texts) -> list[str]:
    """Returns strings as a list, or raises BadInput with `name` in the message."""
    if isinstance(texts, str | bytes):
        raise BadInput(f"{name}: expected a list of strings, got one string")
    try:
        strings = list(texts)
    except TypeError:
        raise BadInput(f"{name}: expected a list of strings, got {type(texts).__name__}") from None
    for i, text in enumerate(strings):
        if not isinstance(text, str):
            raise BadInput(f"{name}: expected strings, got {type(text).__name__} at index {i}")
    return strings


class _CompoundsSplit(Tokenizer13a):
    def __call__(self, line: str) -> str:  # type: ignore[override]
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", super().__call__(line))

    def signature(self) -> str:
        return "13a+compounds-split"


def _paper_metric() -> BLEU:
    metric = BLEU(tokenize="13a")
    metric.tokenizer = _CompoundsSplit()
    metric.tokenizer_signature = metric.tokenizer.signature()
    return metric


def _tokenizers(references: list[str]) -> list[str]:
    """Returns names of sacreBLEU's tokenizers for the script of a text, the usual one first."""
    text = "".join("".join(references).split())

    def share(script: str) -> float:
        return len(re.findall(script, text)) / max(len(text), 1)

    if share(WITHOUT_SPACES) > 0.5:
        return ["char"]
    kana, han, hangul = (share(script) > 0.1 for script in ("[\u3040-\u30ff]", "[\u4e00-\u9fff]", "[\uac00-\ud7af]"))
    if kana:
        return ["ja-mecab", "char"] if importlib.util.find_spec("MeCab") else ["char"]
    return ["zh", "char"] if han else ["char"] if hangul else ["13a"]


def _score(metric: SacreMetric, translations: list[str], lists: list[list[str]]) -> Score:
    return Score(metric.corpus_score(translations, lists).score, str(metric.get_signature()))
