"""Several Transformers that decode as one."""

from typing import Any

import keras
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.layers.decoder import DecoderCache
from tf_transformer.masks import padding_mask
from tf_transformer.models.transformer import Transformer
from tf_transformer.utils.type_names import Tensor


class Ensemble(keras.Model):
    """Several models that decode as one, by the mean of their probabilities.

    It replaces a `Transformer` in a `Translator` and in its exports. Its logits are the logarithms of the mean. Its
    attention weights hold the heads of the first model, then those of the second, and so on. It cannot be trained.

    Args:
        models: `Transformer`s of one configuration and one dtype, for one tokenizer.

    Raises:
        BadInput: If `models` is empty, or they differ.

    Examples:
        >>> config = tt.TransformerConfig(num_layers=1, d_model=32, d_ff=64, num_heads=4, vocab_size=500)
        >>> ensemble = tt.Ensemble([tt.Transformer(config), tt.Transformer(config)])
        >>> source, target = keras.ops.array([[5, 6, 7, 2]]), keras.ops.array([[1, 8, 9]])
        >>> keras.ops.shape(ensemble((source, target)))
        (1, 3, 500)
    """

    def __init__(self, models: list[Transformer], **kwargs: Any) -> None:
        if not models or len({(model.config, model.dtype_policy.name) for model in models}) > 1:
            got = "; ".join(f"{model.config} in {model.dtype_policy.name}" for model in models)
            raise BadInput(f"expected models of one configuration and one dtype, got {got or 'none'}")
        super().__init__(dtype=models[0].dtype_policy, **kwargs)
        self.autocast = False  # ids that arrive as floats keep their value
        for model in models:
            if not model.built:  # Keras builds a model when it is called, and not its methods
                model.build()
        self.models = list(models)
        self.config = models[0].config
        self.built = True

    @property
    def max_length(self) -> int | None:
        """Length of the longest sequence that has positions. `None` means any."""
        return self.models[0].max_length

    def __reduce__(self) -> Any:
        """Pickles the models, each as Keras does."""
        return type(self), ([*self.models],)

    def encode(self, source: Tensor, mask: Tensor = None, *args: Any, **kwargs: Any) -> Any:
        """Works like `Transformer.encode`, but memory is a list with [B, S, d] per model."""
        mask = padding_mask(source) if mask is None else mask
        encoded = [model.encode(source, mask, *args, **kwargs) for model in self.models]
        return [memory for memory, _, _ in encoded], mask, _side_by_side(scores for _, _, scores in encoded)

    def decode(self, target: Tensor, memory: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Does the same as `Transformer.decode`."""
        pairs = zip(self.models, memory, strict=True)
        decoded = [model.decode(target, part, *args, **kwargs) for model, part in pairs]
        logits, self_scores, cross_scores = zip(*decoded, strict=True)
        return _log_mean(logits), _side_by_side(self_scores), _side_by_side(cross_scores)

    def init_cache(self, memory: Tensor, slots: int = 0) -> list[DecoderCache]:
        """Returns all layers' caches of the first model, then those of the second, and so on."""
        caches = [model.init_cache(part, slots) for model, part in zip(self.models, memory, strict=True)]
        return [cache for caches_of_model in caches for cache in caches_of_model]

    def softmax_weights(self, candidates: Tensor = None) -> Any:
        return [model.softmax_weights(candidates) for model in self.models]

    def decode_step(
        self,
        target: Tensor,
        cache: Any,
        memory_mask: Tensor,
        position: Tensor,
        slot: Tensor,
        attention_mask: Tensor = None,
        softmax_weights: Tensor = None,
        return_attention_scores: bool = False,
    ) -> Any:
        """Does the same as `Transformer.decode_step`."""
        layers = len(cache) // len(self.models)
        logits, new_cache, scores = [], [], []
        for i, model in enumerate(self.models):
            model_cache, weights = cache[i * layers : (i + 1) * layers], softmax_weights and softmax_weights[i]
            inputs = target, model_cache, memory_mask, position, slot, attention_mask, weights
            model_logits, model_cache, *model_scores = model.decode_step(*inputs, return_attention_scores)
            logits.append(model_logits)
            new_cache += model_cache
            scores.append(model_scores)
        return _log_mean(logits), new_cache, *map(_side_by_side, zip(*scores, strict=True))

    call = Transformer.call
    compute_output_shape = Transformer.compute_output_shape
    compute_output_spec = Transformer.compute_output_spec

    def astype(self, dtype: str) -> "Ensemble":
        return Ensemble([model.astype(dtype) for model in self.models])

    def merged(self) -> "Ensemble":
        models = [model.merged() for model in self.models]
        return self if models == self.models else Ensemble(models)


def _log_mean(logits: Tensor) -> Any:
    """Returns the logarithms of the models' mean probabilities, from a list of logits [..., V]."""
    log_probs = ops.stack([ops.log_softmax(each) for each in logits])
    return ops.logsumexp(log_probs, axis=0) - ops.log(float(len(logits)))


def _side_by_side(scores: Tensor) -> Any:
    """Joins attention weights [B, h, T, S] by model and layer to [B, n * h, T, S] by layer."""
    return [ops.concatenate(layer, axis=1) for layer in zip(*scores, strict=True)]
