"""A model of token ids as Keras's users know a model: errors before a step, and `export`."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.utils.type_names import Tensor

if keras.backend.backend() == "tensorflow":  # `fit` on several devices
    from tf_transformer.models.training_step import Model
else:
    from keras import Model  # type: ignore[no-redef]


class KerasModel(Model):
    """Base of `Transformer`: methods of `keras.Model` that differ for a model of token ids.

    Its inputs are source and target ids of shapes `(B, S)` and `(B, T)`. Its labels are ids of shape `(B, T)`.

    Attributes:
        after_fit: Callbacks to run when `fit` ends, also after an exception, which Keras does not report to callbacks.
    """

    config: TransformerConfig
    after_fit: contextlib.ExitStack

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        # Checked here, since Keras adds lines to an error from `call`.
        check_pair(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Trains the model as `keras.Model.fit` does, with short errors.

        Args:
            args: Source and target ids, and labels, or batches of both, as Keras takes them.
            kwargs: Arguments of `keras.Model.fit`. To weigh tokens, pass `sample_weight` of shape `(B, T)`.

        Raises:
            BadInput: If all weights are frozen, `class_weight` is passed, or an id is out of range. Ids in arrays are
                checked before the first step. Others are checked in the step, if TensorFlow can raise there, on a CPU.
        """
        self._check_training(kwargs)
        arguments = dict(zip(("x", "y"), args, strict=False)) | kwargs
        x, labels = arguments.get("x"), arguments.get("y")
        if isinstance(labels, np.ndarray):
            labels = labels[labels != getattr(self.loss, "ignore_class", None)]
        for ids in (*(x if isinstance(x, tuple | list) else ()), labels):
            if isinstance(ids, np.ndarray) and ids.size:
                self._check_range(ids.max() if ids.max() >= self.config.vocab_size else ids.min())
        with contextlib.ExitStack() as self.after_fit:
            try:
                return super().fit(*args, **kwargs)
            except Exception as error:
                # TensorFlow's InvalidArgumentError has sixty lines.
                if type(error).__name__ == "InvalidArgumentError":
                    for id, size in re.findall(r"= (-?\d+) is not in \[0, (\d+)\)", str(error)):
                        if int(size) == self.config.vocab_size:
                            self._check_range(int(id))
                raise

    def _check_range(self, id: int) -> None:
        V = self.config.vocab_size
        if not 0 <= id < V:
            action = f". Pass ignore_class={id} to loss and metrics if such labels do not count." if id < 0 else ""
            raise BadInput(f"expected ids from 0 to below vocab_size={V}, got {id}{action}") from None

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        self._check_training(kwargs)
        return super().train_on_batch(*args, **kwargs)

    def _check_training(self, options: dict[str, Any]) -> None:
        if options.get("class_weight") is not None:
            raise BadInput("class_weight: expected none for token ids. Pass sample_weight=table[labels] instead.")
        if self.built and not self.trainable_weights:
            raise BadInput("expected trainable weights, got a model whose weights are all frozen")
        if getattr(self.loss, "reduction", "mean") in ("none", None):
            raise BadInput('loss: expected one number per batch, got reduction="none". Compile a loss that is a mean.')

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: Any = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """`keras.Model.export`. The default signature takes source and target ids of any number and length."""
        if not self._called:  # Keras exports only a model that was called
            self((ops.ones((1, 1), "int32"), ops.ones((1, 1), "int32")))
        names = ("source", "target")
        ids = tuple(keras.InputSpec(dtype="int32", shape=(None, None), name=name) for name in names)
        super().export(filepath, format, verbose, input_signature or [ids], **kwargs)

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        # Its layers are rematerialized one by one. The whole model at once would save no memory.
        return layer_call

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traces the call, since outputs and dtypes depend on its options.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


def check_pair(inputs: Any) -> None:
    """Raises BadInput unless a model's inputs are source and target ids of shapes [B, S] and [B, T]."""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        got = f"{len(inputs)} parts" if isinstance(inputs, tuple | list) else f"one {type(inputs).__name__}"
    elif any(hasattr(ids, "row_splits") for ids in inputs):
        got = "a ragged tensor, for which write ids.to_tensor(); it pads with 0"
    elif any(getattr(getattr(ids, "shape", None), "rank", 2) is None for ids in inputs):  # known later
        return
    else:
        source, target = (tuple(getattr(ids, "shape", ())) for ids in inputs)
        if len(source) == len(target) == 2 and (None in (source[0], target[0]) or source[0] == target[0]):
            return
        got = f"shapes {source} and {target}"
    raise BadInput(f"inputs: expected (source, target), arrays of ids [B, S] and [B, T]; got {got}")
