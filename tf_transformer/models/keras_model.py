"""A model of token ids as Keras's users know a model: class weights in `fit`, and `export`."""

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
    """The base of `Transformer`: the methods of `keras.Model` that a model of token ids needs in another form.

    Its inputs are source and target ids, ([B, S], [B, T]); its labels are ids [B, T].

    Attributes:
        class_weights: the weight of each token id, float32 [V], in the step that trains; or `None`.
        after_fit: callbacks to run when `fit` ends, also after an exception, which Keras does not report to callbacks.
    """

    config: TransformerConfig
    class_weights: Any = None
    after_fit: contextlib.ExitStack

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, after a check of the inputs: inside `call`, Keras would surround a message with its own lines.

        Raises:
            BadInput: they are no pair of ids.
        """
        check_pair(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(self, *args: Any, class_weight: dict[int, float] | None = None, **kwargs: Any) -> keras.callbacks.History:
        """`keras.Model.fit`, except that `class_weight` weighs tokens; in Keras it weighs rows.

        Args:
            args: source and target ids, ([B, S], [B, T]), and labels [B, T]; or batches of both, as Keras takes them.
            class_weight: {token id: weight}; other ids have weight 1. It trains like a `sample_weight` [B, T], and
                multiplies one that is given. It does not apply to validation.
            kwargs: of `keras.Model.fit`.

        Raises:
            BadInput: all weights are frozen, or an id or class weight is invalid. Ids of batches, of which arrays are
                looked at before, are told of where the backend looks at them, as TensorFlow does on a CPU.
        """
        self._prepare(class_weight)
        given = dict(zip(("x", "y"), args, strict=False)) | kwargs
        labels = given.get("y")
        if isinstance(labels, np.ndarray):
            labels = labels[labels != getattr(self.loss, "ignore_class", None)]
        for ids in (*(x if isinstance(x := given.get("x"), tuple | list) else ()), labels):
            if isinstance(ids, np.ndarray) and ids.size:
                self._check_range(ids.max() if ids.max() >= self.config.vocab_size else ids.min())
        with contextlib.ExitStack() as self.after_fit:
            try:
                return super().fit(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ == "InvalidArgumentError":  # TensorFlow's, in sixty lines
                    for found, size in re.findall(r"= (-?\d+) is not in \[0, (\d+)\)", str(error)):
                        if int(size) == self.config.vocab_size:
                            self._check_range(int(found))
                raise

    def _check_range(self, id: int) -> None:
        V = self.config.vocab_size
        if not 0 <= id < V:
            action = f". Pass ignore_class={id} to loss and metrics if such labels do not count." if id < 0 else ""
            raise BadInput(f"expected ids from 0 to below vocab_size={V}, got {id}{action}") from None

    def train_on_batch(self, *args: Any, class_weight: dict[int, float] | None = None, **kwargs: Any) -> Any:
        """`keras.Model.train_on_batch`, with `class_weight` as in `fit`."""
        self._prepare(class_weight)
        return super().train_on_batch(*args, **kwargs)

    def train_step(self, *args: Any) -> Any:
        *state, data = args  # JAX has a state
        if self.class_weights is not None:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            # The loss finds labels that are not classes. Here -100, which it may ignore, would be out of range.
            labels = ops.clip(ops.cast(y, "int32"), 0, self.config.vocab_size - 1)
            weights = ops.take(self.class_weights, labels, axis=0)
            if sample_weight is not None:
                weights = weights * ops.reshape(ops.cast(sample_weight, "float32"), (ops.shape(y)[0], -1))
            data = x, y, weights
        return super().train_step(*[*state, data])

    def _prepare(self, class_weight: dict[int, float] | None) -> None:
        if self.built and not self.trainable_weights:
            raise BadInput("expected weights that learn, got a model whose weights are all frozen")
        if getattr(self.loss, "reduction", "mean") in ("none", None):
            raise BadInput('loss: expected one number per batch, got reduction="none". Compile a loss that is a mean.')
        table: Any = None if class_weight is None else _weight_of_ids(class_weight, self.config.vocab_size)
        if not np.array_equal(table, self.class_weights):
            self.class_weights, self.train_function = table, None  # a compiled step holds the old ones

    def export(
        self,
        filepath: Any,
        format: str = "tf_saved_model",
        verbose: Any = None,
        input_signature: Any = None,
        **kwargs: Any,
    ) -> None:
        """`keras.Model.export`; the default signature takes source and target ids of any number and length."""
        if not self._called:  # Keras exports only a model that was called
            self((ops.ones((1, 1), "int32"), ops.ones((1, 1), "int32")))
        names = ("source", "target")
        ids = tuple(keras.InputSpec(dtype="int32", shape=(None, None), name=name) for name in names)
        super().export(filepath, format, verbose, input_signature or [ids], **kwargs)

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return layer_call  # its layers are computed again one by one; the whole model at once would save nothing

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traced: outputs and dtypes vary


def check_pair(inputs: Any) -> None:
    """Check that a model's inputs are source and target ids, ([B, S], [B, T]).

    Raises:
        BadInput: they are not.
    """
    got = ""
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        got = f"{len(inputs)} parts" if isinstance(inputs, tuple | list) else f"one {type(inputs).__name__}"
    elif any(hasattr(ids, "row_splits") for ids in inputs):
        got = "a ragged tensor, for which write ids.to_tensor(); it pads with 0"
    elif all(getattr(getattr(ids, "shape", None), "rank", 2) is not None for ids in inputs):  # else known later
        source, target = (tuple(getattr(ids, "shape", ())) for ids in inputs)
        if not len(source) == len(target) == 2 or (None not in (source[0], target[0]) and source[0] != target[0]):
            got = f"shapes {source} and {target}"
    if got:
        raise BadInput(f"inputs: expected (source, target), arrays of ids [B, S] and [B, T]; got {got}")


def _weight_of_ids(class_weight: dict[int, float], V: int) -> Any:
    """{token id: weight} as float32 [V]."""
    try:
        ids, weights = np.array(list(class_weight)), np.array(list(class_weight.values()), "float32")
        right = ids.dtype.kind == "i" and np.all((ids >= 0) & (ids < V)) and np.all((weights >= 0) & (weights < np.inf))
    except (AttributeError, TypeError, ValueError):
        right = False
    if not right:
        raise BadInput(f"class_weight: expected {{token id below {V}: weight from 0}}, got {class_weight!r}")
    table = np.ones(V, "float32")
    table[ids] = weights
    return table
