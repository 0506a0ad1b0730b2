"""A model of token ids as Keras's users know a model: class weights in `fit`, `export`, `quantize`."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from tf_transformer.base.type_names import Tensor
from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.layers import PositionalEmbedding

if keras.backend.backend() == "tensorflow":  # `fit` on several devices
    from tf_transformer.training_step import Model
else:
    from keras import Model  # type: ignore[no-redef]


class KerasModel(Model):
    """The base of `Transformer`: the methods of `keras.Model` that a model of token ids needs in another form.

    Its inputs are source and target ids, ([B, S], [B, T]); its labels are ids [B, T].

    Attributes:
        after_fit: callbacks to run when `fit` ends, also after an exception, which Keras does not report to callbacks.
    """

    config: TransformerConfig
    after_fit: contextlib.ExitStack

    def __call__(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        """As in Keras, after a check of the inputs: inside `call`, Keras would surround a message with its own lines.

        Raises:
            BadInput: they are no pair of ids.
        """
        check_pair(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def fit(
        self,
        x: Tensor = None,
        y: Tensor = None,
        *args: Any,
        class_weight: dict[int, float] | None = None,
        **kwargs: Any,
    ) -> keras.callbacks.History:
        """`keras.Model.fit`, except that `class_weight` weighs tokens; in Keras it weighs rows.

        Args:
            x: source and target ids, ([B, S], [B, T]); or, without y, a `tf.data.Dataset` or `keras.utils.PyDataset` of
                x and y.
            y: labels [B, T].
            class_weight: {token id: weight}; other ids have weight 1. It trains like a `sample_weight` [B, T], and does
                not apply to validation.

        Raises:
            BadInput: all weights are frozen; an id or class weight is invalid; `sample_weight` or `validation_split` is
                given, too; the data are of another kind.
        """
        self._check_learns()
        with contextlib.ExitStack() as self.after_fit:
            return self._fit(x, y, *args, class_weight=class_weight, **kwargs)

    def _fit(self, x: Tensor, y: Tensor, *args: Any, class_weight: dict[int, float] | None, **kwargs: Any) -> Any:
        if class_weight is None:
            return super().fit(x, y, *args, **kwargs)
        table = _weight_of_ids(class_weight, self.config.vocab_size)
        if kwargs.get("sample_weight") is not None or kwargs.get("validation_split"):
            raise BadInput("class_weight: expected no sample_weight and no validation_split with it")
        if y is not None:
            return super().fit(x, y, *args, sample_weight=table[ops.convert_to_numpy(y)], **kwargs)
        if isinstance(x, keras.utils.PyDataset):
            return super().fit(_Weighted(x, table), None, *args, **kwargs)
        if not hasattr(x, "element_spec"):
            raise BadInput(f"class_weight: expected arrays, a tf.data.Dataset or a PyDataset, got {type(x).__name__}")
        if len(x.element_spec) != 2:
            raise BadInput(f"class_weight: expected a dataset of inputs and labels, got {len(x.element_spec)} parts")
        import tensorflow as tf

        return super().fit(x.map(lambda x, y: (x, y, tf.gather(table, y))), None, *args, **kwargs)

    def train_on_batch(
        self,
        x: Tensor,
        y: Tensor = None,
        sample_weight: Tensor = None,
        class_weight: dict[int, float] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """`keras.Model.train_on_batch`, with `class_weight` as in `fit`."""
        self._check_learns()
        if class_weight is not None:
            table = _weight_of_ids(class_weight, self.config.vocab_size)
            if sample_weight is not None:
                raise BadInput("class_weight: expected no sample_weight with it")
            sample_weight = table[ops.convert_to_numpy(y)]
        return super().train_on_batch(x, y, sample_weight, return_dict=return_dict)

    def _check_learns(self) -> None:
        if self.built and not self.trainable_weights:
            raise BadInput("expected weights that learn, got a model whose weights are all frozen")

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

    def quantize(self, mode: Any = None, config: Any = None, **kwargs: Any) -> None:
        """As in Keras, except that embeddings and logits become integers, too, unless `filters` are given. (Keras skips
        layers that contain layers.)"""
        for layer in self.layers:
            if isinstance(layer, PositionalEmbedding) and kwargs.get("filters") is None:
                with contextlib.suppress(NotImplementedError):  # this mode is only for products
                    layer.quantize(mode, config=config)
        super().quantize(mode, config=config, **kwargs)

    def rematerialized_call(self, layer_call: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return layer_call  # its layers are computed again one by one; the whole model at once would save nothing

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)  # traced: outputs and dtypes vary


class _Weighted(keras.utils.PyDataset):
    """A dataset's batches of inputs and labels, with a weight for each token."""

    def __init__(self, batches: keras.utils.PyDataset, table: np.ndarray) -> None:
        super().__init__(batches.workers, batches.use_multiprocessing, batches.max_queue_size)
        self.batches = batches
        self.table = table

    def __getitem__(self, index: int) -> Any:
        batch = self.batches[index]
        if len(batch) != 2:
            raise BadInput(f"class_weight: expected batches of inputs and labels, got {len(batch)} parts")
        x, y = batch
        return x, y, self.table[np.asarray(y)]

    @property
    def num_batches(self) -> Any:
        return self.batches.num_batches

    def on_epoch_begin(self) -> None:
        self.batches.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self.batches.on_epoch_end()


def check_pair(inputs: Any) -> None:
    """Check that a model's inputs are source and target ids, ([B, S], [B, T]).

    Raises:
        BadInput: they are not.
    """
    if got := _no_pair(inputs):
        raise BadInput(f"inputs: expected (source, target), arrays of ids [B, S] and [B, T]; got {got}")


def _no_pair(inputs: Any) -> str:
    """What the inputs are instead of a pair of ids; "" if they are one."""
    if isinstance(inputs, dict):
        return f"a dict of {', '.join(map(str, inputs))}"
    if not isinstance(inputs, tuple | list):
        return f"one {type(inputs).__name__}"
    if len(inputs) != 2:
        return f"{len(inputs)} parts"
    if any(hasattr(ids, "row_splits") for ids in inputs):
        return "a ragged tensor, for which write ids.to_tensor(); it pads with 0"
    if not all(hasattr(ids, "shape") and hasattr(ids, "dtype") for ids in inputs):
        return " and ".join(type(ids).__name__ for ids in inputs)
    dtypes = [getattr(ids.dtype, "name", str(ids.dtype)) for ids in inputs]
    if any("int" not in dtype and "float" not in dtype for dtype in dtypes):
        return f"dtypes {' and '.join(dtypes)}"
    if {"float16", "bfloat16"} & set(dtypes):
        return f"dtypes {' and '.join(dtypes)}, which lack most ids above 256"
    if any(getattr(ids.shape, "rank", 2) is None for ids in inputs):  # TensorFlow knows it later
        return ""
    source, target = (tuple(ids.shape) for ids in inputs)
    alike = len(source) == len(target) == 2 and (None in (source[0], target[0]) or source[0] == target[0])
    return "" if alike else f"shapes {source} and {target}"


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
