"""A metric to validate by: one of sacreBLEU's, or a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from tf_transformer.evaluation import bleu
from tf_transformer.utils.type_names import MetricName
from tf_transformer.utils.values import BadInput, check_fields, convert, shown


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
        result = (self.function or (lambda *texts: bleu.score(texts[0], texts[2], name)))(outputs, sources, references)
        return float(convert(self.name, getattr(result, "value", result), float))

    def best_first(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the indices of a history's rows with this score, best first. Of equal ones, the earlier is first."""
        scored = [i for i, row in enumerate(rows) if self.column in row]
        # Sorting in reverse keeps the order of equal rows.
        return sorted(scored, key=lambda i: float(rows[i][self.column]), reverse=bool(self.higher_is_better))
