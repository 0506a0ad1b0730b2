"""Exports to CTranslate2 (https://opennmt.net/CTranslate2), a runtime for CPUs and GPUs with 8-bit and 16-bit weights.
They need `pip install "tf-transformer[ctranslate2]"`.

Its search differs from ours (section 6.1) in two points. It divides log-probabilities by length^length_penalty. Ours
divides by ((5 + length) / 6)^length_penalty. Both lengths count EOS. And its rule for ending a search is different.
With `length_penalty=0`, `min_decoding_length=0`, our limit of tokens, and infinite patience here, both return the same
outputs.

Two defaults also differ. `min_decoding_length=1` forbids the empty output, and it normalizes the probabilities of the
other tokens again. With `min_length=2`, which counts EOS, ours forbids it and keeps the probabilities.
`max_decoding_length=256` holds for every sentence. Here the limit is the source's length + 50.
"""

import os
from collections.abc import Callable
from typing import Any, Literal, get_args

import keras
import ml_dtypes  # noqa: F401 (teaches NumPy bfloat16)
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.families.pieces import ADDED
from tf_transformer.extensions.interop.families.weights import widen
from tf_transformer.extensions.interop.formats.checks import check_convertible, check_layers
from tf_transformer.extensions.interop.shortlist import vocabulary_map
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID
from tf_transformer.utils.files import new_folder
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import checked

Quantization = Literal["int8", "int16", "float16", "bfloat16"]
QUANTIZATIONS = get_args(Quantization)
NEG_INF = -1e4  # a logit that is finite in 16 bits
MAX_POSITIONS = 2048  # CTranslate2 reads sources of at most 1,024 tokens by default.


@checked
def save(translator: TensorTranslator, path: str | os.PathLike[str], quantization: Quantization | None = None) -> None:
    """Writes a model directory for `ctranslate2.Translator` atomically.

    It holds model.bin, config.json, shared_vocabulary.json (or source_vocabulary.json and target_vocabulary.json), the
    shortlist as vmap.txt, if any, for `use_vmap=True`, and `Tokenizer.files`: tokenizer.model, source.spm and
    target.spm, or sentencepiece.bpe.model. Sources are lists of SentencePiece's tokens, after the token of a language
    or a code such as ">>fra<<", if any. CTranslate2 adds EOS. See docs/guides/ctranslate2.md, and
    docs/guides/new-language.md for added tokens, which are in tokens.json.

    For a model with learned positions, also pass `max_input_length` and `max_decoding_length` of at most its
    max_length: beyond it CTranslate2 raises RuntimeError.

    Args:
        translator: A `Translator`. Only its model and tokenizer are written, since beam size and length penalty are
            arguments of `translate_batch`.
        path: New directory.
        quantization: Storage of weights: "int8", "int16", "float16", "bfloat16", or `None` for float32.

    Raises:
        BadInput: If the translator is an `Ensemble`, has int8 or non-finite weights, or computes what CTranslate2
            cannot, or if CTranslate2 is not installed.
        FileExistsError: If `path` exists.
    """
    check_convertible(translator, ", which CTranslate2 can run")
    spec = transformer_spec(translator.model, "bfloat16" if quantization == "bfloat16" else "float32")
    tokenizer = translator.tokenizer
    vocabulary = tokenizer.tokens(range(tokenizer.vocab_size))
    spec.register_source_vocabulary(tokenizer.source_tokens(range(len(spec.encoder.embeddings[0].weight))))
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token = spec.config.decoder_start_token = vocabulary[BOS_ID]
    spec.config.eos_token = vocabulary[EOS_ID]
    spec.config.unk_token = vocabulary[UNKNOWN_ID]
    # By default, CTranslate2 appends no EOS.
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization)
    with new_folder(path) as folder:
        spec.save(str(folder))
        added = {name: content for name, content in tokenizer.vocabularies.items() if name == ADDED}
        if translator.shortlist is not None:
            added["vmap.txt"] = vocabulary_map(translator.shortlist, tokenizer).encode()
        for name, content in (tokenizer.files | added).items():
            (folder / name).write_bytes(content)


@checked
def transformer_spec(model: Any, dtype: Literal["float32", "bfloat16"] = "float32") -> Any:
    """Returns the weights of a built `Transformer` as a `ctranslate2.specs.TransformerSpec`, without a vocabulary.

    Args:
        model: A model, whose weights are copied.
        dtype: Dtype of the arrays. CTranslate2 itself converts to bfloat16 only with PyTorch.

    Raises:
        BadInput: If the model computes what CTranslate2 cannot, or CTranslate2 is not installed.
    """
    import_extra("ctranslate2", "ctranslate2", "this format")
    check_layers(model)
    spec, layers = _empty_spec(model), [*model.encoder_layers, *model.decoder_layers]

    def array(x: Tensor) -> Any:
        # CTranslate2 quantizes in place, so this is a copy.
        return np.array(ops.convert_to_numpy(x), dtype)

    spec.config.layer_norm_epsilon = layers[0].feed_forward_norm.norm.epsilon
    for layer_spec, layer in zip([*spec.encoder.layer, *spec.decoder.layer], layers, strict=True):
        _fill_attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_norm, array)
        if hasattr(layer, "cross_attention"):
            _fill_attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_norm, array)
        _fill_linear(layer_spec.ffn.linear_0, layer.feed_forward.hidden, array)
        _fill_linear(layer_spec.ffn.linear_1, layer.feed_forward.output_projection, array)
        _fill_norm(layer_spec.ffn.layer_norm, layer.feed_forward_norm.norm, array)
    if model.config.norm_first:
        _fill_norm(spec.encoder.layer_norm, model.encoder_norm, array)
        _fill_norm(spec.decoder.layer_norm, model.decoder_norm, array)

    embedding = model.embedding
    # The table is also the softmax's: one array, which is stored once.
    table = source_table = array(embedding.embeddings)
    if getattr(model, "source_embedding", None) is not None:
        source_table = array(model.source_embedding.embeddings)
    spec.encoder.embeddings[0].weight, spec.decoder.embeddings.weight = source_table, table
    spec.decoder.projection.weight = table
    if embedding.use_bias:
        bias = array(embedding.logits_bias)
        bias[: getattr(model, "controls", 0)] = NEG_INF
        spec.decoder.projection.bias = bias
    rows = embedding.num_positions or MAX_POSITIONS
    positions = array(embedding.encoding(np.arange(rows)))
    for side in (spec.encoder, spec.decoder):
        side.scale_embeddings = embedding.scale
        side.position_encodings.encodings = positions
    return spec


def _empty_spec(model: Any) -> Any:
    """Returns a specification with a model's settings, without weights."""
    from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec, common_spec

    activations = {
        keras.activations.relu: common_spec.Activation.RELU,
        keras.activations.gelu: common_spec.Activation.GELU,
        keras.activations.silu: common_spec.Activation.SWISH,
    }

    def stack(kind: Any, layers: list[Any], **options: Any) -> Any:
        if (activation := layers[0].feed_forward.hidden.activation) not in activations:
            expected = ", ".join(known.__name__ for known in activations)
            raise BadInput(f"activation: expected one of {expected}, which CTranslate2 has, got {activation.__name__}")
        options |= {"pre_norm": model.config.norm_first, "activation": activations[activation]}
        return kind(len(layers), layers[0].self_attention.num_heads, **options)

    # The attention that CTranslate2 returns is the mean of the last layer's first heads.
    heads = model.config.alignment_heads or model.decoder_layers[-1].cross_attention.num_heads
    decoder = stack(TransformerDecoderSpec, model.decoder_layers, alignment_heads=heads)
    return TransformerSpec(stack(TransformerEncoderSpec, model.encoder_layers), decoder)


def _fill_linear(spec: Any, layer: Any, array: Callable[[Tensor], Any]) -> None:
    spec.weight = array(layer.kernel).T
    if layer.use_bias:
        spec.bias = array(layer.bias)


def _fill_norm(spec: Any, layer: Any, array: Callable[[Tensor], Any]) -> None:
    spec.gamma, spec.beta = array(layer.gamma), array(layer.beta)


def _fill_attention(spec: Any, layer: Any, residual: Any, array: Callable[[Tensor], Any]) -> None:
    dense = [layer.query_projection, layer.key_projection, layer.value_projection]
    d_k, d_v = dense[0].units // layer.num_heads, dense[2].units // layer.num_heads

    def widened(weight: Any) -> Any:
        # CTranslate2 has one width for all. Zeros after narrower heads change neither logits nor outputs.
        return widen(weight, layer.num_heads, max(d_k, d_v))

    # One matrix for query, key and value of self-attention. In cross-attention, one for the query and one for the rest.
    for linear, group in zip(spec.linear, [dense] if len(spec.linear) == 2 else [dense[:1], dense[1:]], strict=False):
        linear.weight = np.concatenate([widened(array(part.kernel).T) for part in group])
        if layer.use_bias:
            linear.bias = np.concatenate([widened(array(part.bias)) for part in group])
    _fill_linear(spec.linear[-1], layer.output_projection, array)
    spec.linear[-1].weight = widened(spec.linear[-1].weight.T).T
    spec.queries_scale = d_k**-0.5
    _fill_norm(spec.layer_norm, residual.norm, array)
