"""A metric to validate by: one of sacreBLEU's, or a function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from tf_transformer.evaluation import bleu
from tf_transformer.utils.type_names import MetricName
from tf_transformer.utils.values import BadInput, check_fields, shown

Function = Callable[[list[str], list[str], list[str]], Any]


@dataclass(frozen=True)
class Metric:
    """A metric to validate by.

        tt.Metric("TER")
        tt.Metric("length", lambda outputs, sources, references: sum(map(len, outputs)), higher_is_better=False)

    Attributes:
        name: Name in logs and, as `dev_` and the name in lower case, in the history.
        function: Function of outputs, sources and references, lists of strings of the same length, that returns a
            number, or an object whose `value` is one. Defaults to sacreBLEU's metric of this name: BLEU, chrF, chrF++,
            TER or spBLEU.
        higher_is_better: Whether the best score is the highest. Defaults to true, except for TER.

    Raises:
        BadInput: If there is no function, and the name is none of sacreBLEU's.
    """

    name: str
    function: Function | None = None
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
        result = self.function(outputs, sources, references) if self.function else bleu.score(outputs, references, name)
        value = np.asarray(getattr(result, "value", result))
        if value.shape != () or value.dtype.kind not in "iuf":
            raise BadInput(f"{self.name}: expected a metric that returns a number, got {shown(result)}")
        return float(value)

    @classmethod
    def of(cls, value: "Metric | Function | str") -> "Metric":
        """Returns a metric, or that of a function or a name."""
        if isinstance(value, Metric):
            return value
        return cls(value) if isinstance(value, str) else cls(getattr(value, "__name__", type(value).__name__), value)

    def best_first(self, rows: Sequence[Mapping[str, Any]]) -> list[int]:
        """Returns the indices of a history's rows with this score, best first. Of equal ones, the earlier is first."""
        sign = -1 if self.higher_is_better else 1
        scores = {i: sign * float(row[self.column]) for i, row in enumerate(rows) if self.column in row}
        return sorted(scores, key=lambda i: (scores[i] != scores[i], scores[i]))  # NaN is last
