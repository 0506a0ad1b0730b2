"""Export to CTranslate2 (https://opennmt.net/CTranslate2), an inference engine for CPUs and GPUs with 8-bit and 16-bit
weights. Needs `pip install "tf-transformer[ctranslate2]"`.

Its search differs from ours (section 6.1) in two points. It divides log-probabilities by length^length_penalty, without
the end symbol; ours divides by ((5 + length) / 6)^length_penalty, with it. And it stops by another rule. With
`length_penalty=0`, and infinite patience here, both find the same outputs.

Two of its defaults differ, too. `min_decoding_length=1` forbids the empty output; here that is `min_length=2`, which
counts the end symbol. `max_decoding_length=256` holds for every sentence; here the limit is the source's length + 50.
"""

import os
from typing import Any, Literal, get_args

import keras
import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.families.weights import widen
from tf_transformer.extensions.interop.formats.parts import attentions, check_no_added, check_parts, norms, only
from tf_transformer.layers.int8 import is_int8
from tf_transformer.models.ensemble import Ensemble
from tf_transformer.models.transformer import check_finite
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.files import new_folder
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import checked

Quantization = Literal["int8", "int16", "float16", "bfloat16"]
QUANTIZATIONS = get_args(Quantization)
RULED_OUT = -1e4  # a logit; finite in 16 bits, too
MAX_POSITIONS = 2048  # rows of sinusoids; CTranslate2 reads sources of at most 1,024 tokens if not told otherwise


@checked
def save(translator: TextModel, path: str | os.PathLike[str], quantization: Quantization | None = None) -> None:
    """Write a model folder for `ctranslate2.Translator`, whole or not at all.

    The folder holds model.bin, config.json, shared_vocabulary.json and the files of `Tokenizer.files`: tokenizer.model,
    the SentencePiece model, or source.spm and target.spm of a pretrained model that has two; a code such as ">>fra<<"
    is a piece of its own before the text's pieces. With two vocabularies there are source_vocabulary.json and
    target_vocabulary.json. A model of several languages has sentencepiece.bpe.model. It takes the piece of a language,
    such as "__en__" or "eng_Latn", before the source's pieces, and that of another as `target_prefix`. Sources are
    lists of SentencePiece's pieces; CTranslate2 adds the end symbol:

        sp = sentencepiece.SentencePieceProcessor(model_file="folder/tokenizer.model")
        result = ctranslate2.Translator("folder").translate_batch([sp.encode("Hello world.", out_type=str)])
        sp.decode(result[0].hypotheses[0])

    For a model with learned positions, also pass `max_input_length` and `max_decoding_length` of at most its
    max_length: beyond it CTranslate2 raises RuntimeError.

    Args:
        translator: a `Translator`; only its model and tokenizer are written, since beam size and length penalty are
            arguments of `translate_batch`.
        path: must not exist.
        quantization: how weights are stored: "int8", "int16", "float16", "bfloat16", or `None` for float32.

    Raises:
        BadInput: the quantization is unknown; the translator is an `Ensemble`, has weights in int8 or weights that are
            not finite, or computes what CTranslate2 cannot; or CTranslate2 is not installed.
        FileExistsError: path exists.
    """
    if isinstance(translator.model, Ensemble):
        count = len(translator.model.models)
        raise BadInput(f"translator: expected one model, which CTranslate2 can run, got an ensemble of {count}")
    if is_int8(translator.model):
        raise BadInput("translator: expected weights of 16 or 32 bits, which quantization can convert, got int8")
    check_no_added(translator.tokenizer)
    check_finite(translator.model.weights)
    spec = transformer_spec(translator.model, "bfloat16" if quantization == "bfloat16" else "float32")
    tokenizer = translator.tokenizer
    vocabulary = tokenizer.tokens(range(tokenizer.vocab_size))
    sources = tokenizer.source_tokens(range(len(spec.encoder.embeddings[0].weight)))
    spec.register_source_vocabulary(sources)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token = spec.config.decoder_start_token = vocabulary[BOS_ID]
    spec.config.eos_token = vocabulary[EOS_ID]
    spec.config.unk_token = vocabulary[UNKNOWN_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization)

    with new_folder(path) as folder:
        spec.save(str(folder))
        for name, content in tokenizer.files.items():
            (folder / name).write_bytes(content)


@checked
def transformer_spec(model: Any, dtype: Literal["float32", "bfloat16"] = "float32") -> Any:
    """The weights of a built `Transformer` as a `ctranslate2.specs.TransformerSpec`, without a vocabulary.

    Args:
        model: the model; its weights are copied.
        dtype: of the arrays, "float32" or "bfloat16". CTranslate2 itself converts to bfloat16 only with PyTorch.

    Raises:
        BadInput: the model computes what CTranslate2 cannot, or CTranslate2 is not installed.
    """
    import_extra("ctranslate2", "ctranslate2", "this format")
    from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec, common_spec

    check_parts(model)
    if dtype == "bfloat16":
        import ml_dtypes  # a dependency of TensorFlow and Keras

        dtype = ml_dtypes.bfloat16

    def array(x: Tensor) -> Any:
        return np.array(ops.convert_to_numpy(x), dtype)  # a copy: CTranslate2 quantizes in place

    def linear(spec: Any, layer: keras.layers.Layer) -> None:
        spec.weight = array(layer.kernel).T
        if layer.use_bias:
            spec.bias = array(layer.bias)

    def norm(spec: Any, layer: keras.layers.Layer) -> None:
        spec.gamma, spec.beta = array(layer.gamma), array(layer.beta)

    def attention(spec: Any, layer: keras.layers.Layer, residual: keras.layers.Layer) -> Any:
        """The first projections are one matrix, [query, key, value] or [query] and [key, value]."""
        query, key, value = layer.query_projection, layer.key_projection, layer.value_projection
        d_k, d_v = query.units // layer.num_heads, value.units // layer.num_heads

        def widened(weight: Any) -> Any:
            # One width for all heads: zeros that fill the narrower ones change neither logits nor output.
            return widen(weight, layer.num_heads, max(d_k, d_v))

        def together(spec: Any, *denses: keras.layers.Layer) -> None:
            spec.weight = np.concatenate([widened(array(dense.kernel).T) for dense in denses])
            if layer.use_bias:
                spec.bias = np.concatenate([widened(array(dense.bias)) for dense in denses])

        if len(spec.linear) == 2:
            together(spec.linear[0], query, key, value)
        else:
            together(spec.linear[0], query)
            together(spec.linear[1], key, value)
        linear(spec.linear[-1], layer.output_projection)
        spec.linear[-1].weight = widened(spec.linear[-1].weight.T).T
        spec.queries_scale = d_k**-0.5
        norm(spec.layer_norm, residual.norm)

    def feed_forward(spec: Any, layer: keras.layers.Layer, residual: keras.layers.Layer) -> None:
        linear(spec.linear_0, layer.hidden)
        linear(spec.linear_1, layer.output_projection)
        norm(spec.layer_norm, residual.norm)

    activations = {
        keras.activations.relu: common_spec.Activation.RELU,
        keras.activations.gelu: common_spec.Activation.GELU,
        keras.activations.silu: common_spec.Activation.SWISH,
    }

    def stack(kind: Any, layers: list[Any], **options: Any) -> Any:
        activation = only("activation", [layer.feed_forward.hidden.activation for layer in layers])
        if activation not in activations:
            expected = ", ".join(known.__name__ for known in activations)
            raise BadInput(f"activation: expected one of {expected}, which CTranslate2 has, got {activation.__name__}")
        heads = only("num_heads", [part.num_heads for layer in layers for part in attentions(layer)])
        return kind(len(layers), heads, pre_norm=norm_first, activation=activations[activation], **options)

    layers = [*model.encoder_layers, *model.decoder_layers]
    norm_first = only("norm_first", [model.config.norm_first, *(layer.norm_first for layer in layers)])
    encoder = stack(TransformerEncoderSpec, model.encoder_layers)
    heads = model.config.alignment_heads or model.decoder_layers[-1].cross_attention.num_heads  # for its attention
    decoder = stack(TransformerDecoderSpec, model.decoder_layers, alignment_heads=heads)
    spec = TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = only("epsilon", [norm.norm.epsilon for layer in layers for norm in norms(layer)])
    for layer_spec, layer in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_norm)
        feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_norm)
    for layer_spec, layer in zip(spec.decoder.layer, model.decoder_layers, strict=True):
        attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_norm)
        attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_norm)
        feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_norm)

    if norm_first:
        norm(spec.encoder.layer_norm, model.encoder_norm)
        norm(spec.decoder.layer_norm, model.decoder_norm)

    embedding = model.embedding
    rows = embedding.max_length if embedding.positions == "learned" else MAX_POSITIONS
    positions = array(embedding.encoding(np.arange(rows)))
    embeddings = array(embedding.embeddings)
    spec.decoder.projection.weight = embeddings  # tied: one array, stored once
    own = getattr(model, "source_embedding", None)
    source_embeddings = embeddings if own is None else array(own.embeddings)
    if embedding.use_bias:
        bias = array(embedding.logits_bias)
        bias[: getattr(model, "controls", 0)] = RULED_OUT
        spec.decoder.projection.bias = bias
    spec.encoder.embeddings[0].weight, spec.decoder.embeddings.weight = source_embeddings, embeddings
    for side in (spec.encoder, spec.decoder):
        side.scale_embeddings = embedding.scale  # by sqrt(d_model)
        side.position_encodings.encodings = positions
    return spec
