"""A trained model as a folder of CTranslate2 (https://opennmt.net/CTranslate2), an inference engine of its own for CPUs
and GPUs, with 8-bit and 16-bit weights. Needs `pip install tf-transformer[ctranslate2]`.

Its search differs from ours (section 6.1) in what it divides log-probabilities by, length^length_penalty where the end
symbol is not counted, ours being ((5 + length) / 6)^length_penalty where it is, and in when it stops; with
`length_penalty=0` both find the same. Two of its defaults are not ours: `min_decoding_length=1` forbids the empty
output (our `min_length=2`, which counts the end symbol), and `max_decoding_length=256` holds for every sentence, ours
being its source's length + 50.
"""

import numpy as np
from keras import ops

from tf_transformer.config import BadInput
from tf_transformer.ensemble import Ensemble
from tf_transformer.files import new_folder
from tf_transformer.layers import sinusoids
from tf_transformer.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID

QUANTIZATIONS = ("int8", "int16", "float16", "bfloat16")
MAX_POSITIONS = 2048  # rows of sinusoids; CTranslate2 reads sources of at most 1,024 tokens if not told otherwise


def save(translator, path, quantization: str | None = None) -> None:
    """Write a model folder for `ctranslate2.Translator`, whole or not at all.

    The folder holds model.bin, config.json, shared_vocabulary.json and tokenizer.model, the SentencePiece model.
    Sources go in as SentencePiece's pieces; CTranslate2 adds the end symbol:

        sp = sentencepiece.SentencePieceProcessor(model_file="folder/tokenizer.model")
        result = ctranslate2.Translator("folder").translate_batch([sp.encode("Hello world.", out_type=str)])
        sp.decode(result[0].hypotheses[0])

    For a model of learned positions, say `max_input_length` and `max_decoding_length` of at most its max_length, too:
    beyond that CTranslate2 raises RuntimeError.

    Args:
        translator: a `Translator`; only its model and tokenizer are written: beam size and length penalty are arguments
            of `translate_batch`.
        path: must not exist.
        quantization: how weights are stored: "int8", "int16", "float16", "bfloat16", or `None` for float32.

    Raises:
        BadInput: another quantization, an `Ensemble`, or CTranslate2 is not installed.
        FileExistsError: path exists.
    """
    if isinstance(translator.model, Ensemble):
        count = len(translator.model.models)
        raise BadInput(f"translator: expected one model, which CTranslate2 can run, got an ensemble of {count}")
    if quantization is not None and quantization not in QUANTIZATIONS:
        raise BadInput(f"quantization: expected one of {', '.join(QUANTIZATIONS)} or None; got {quantization!r}")
    spec = transformer_spec(translator.model, "bfloat16" if quantization == "bfloat16" else "float32")
    tokenizer = translator.tokenizer
    vocabulary = [piece.decode() for piece in tokenizer.pieces(range(tokenizer.vocab_size)).numpy()]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token = spec.config.decoder_start_token = vocabulary[BOS_ID]
    spec.config.eos_token = vocabulary[EOS_ID]
    spec.config.unk_token = vocabulary[UNKNOWN_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = translator.model.encoder_layers[0].self_attention_norm.epsilon
    spec.validate()
    spec.optimize(quantization)

    with new_folder(path) as folder:
        spec.save(str(folder))
        (folder / "tokenizer.model").write_bytes(tokenizer.model)


def transformer_spec(model, dtype: str = "float32"):
    """The weights of a built `Transformer` as a `ctranslate2.specs.TransformerSpec`, without vocabulary.

    Args:
        model: the model; its weights are copied.
        dtype: of the arrays, "float32" or "bfloat16", which CTranslate2 itself converts to only where there is PyTorch.
    """
    try:
        from ctranslate2.specs import TransformerSpec, common_spec
    except ImportError as error:
        raise BadInput(
            f"expected the package ctranslate2: pip install tf-transformer[ctranslate2] ({error})"
        ) from error
    if dtype == "bfloat16":
        import ml_dtypes  # a dependency of TensorFlow and Keras

        dtype = ml_dtypes.bfloat16

    def array(x):
        return np.array(ops.convert_to_numpy(x), dtype)  # a copy: CTranslate2 quantizes in place

    def linear(spec, layer):
        spec.weight = array(layer.kernel).T
        if layer.use_bias:
            spec.bias = array(layer.bias)

    def norm(spec, layer):
        spec.gamma, spec.beta = array(layer.norm.gamma), array(layer.norm.beta)

    def attention(spec, layer, residual):
        """The first projections are one matrix, [query, key, value] or [query] and [key, value]."""
        query, key, value, output = (
            array(dense.kernel)
            for dense in (layer.query_projection, layer.key_projection, layer.value_projection, layer.output_projection)
        )
        d_k, d_v = query.shape[1] // layer.num_heads, value.shape[1] // layer.num_heads
        # One width for all heads: zeros beside the narrower change neither products of queries and keys nor outputs.
        query, key, value = (_widen(kernel.T, layer.num_heads, max(d_k, d_v)) for kernel in (query, key, value))
        output = _widen(output, layer.num_heads, max(d_k, d_v)).T
        if len(spec.linear) == 2:
            spec.linear[0].weight = np.concatenate([query, key, value])
        else:
            spec.linear[0].weight = query
            spec.linear[1].weight = np.concatenate([key, value])
        spec.linear[-1].weight = output
        spec.queries_scale = d_k**-0.5
        norm(spec.layer_norm, residual)

    def feed_forward(spec, layer, residual):
        linear(spec.linear_0, layer.hidden)
        linear(spec.linear_1, layer.output_projection)
        norm(spec.layer_norm, residual)

    config = model.config
    if config.attention_window:
        raise BadInput(f"attention_window: expected None, since CTranslate2 has it not, got {config.attention_window}")
    spec = TransformerSpec.from_config(
        config.num_layers,
        config.num_heads,
        pre_norm=False,
        activation=common_spec.Activation.RELU,
        alignment_heads=config.num_heads,  # attention: a mean over the last layer's heads
    )
    for layer_spec, layer in zip(spec.encoder.layer, model.encoder_layers, strict=True):
        attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_norm)
        feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_norm)
    for layer_spec, layer in zip(spec.decoder.layer, model.decoder_layers, strict=True):
        attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_norm)
        attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_norm)
        feed_forward(layer_spec.ffn, layer.feed_forward, layer.feed_forward_norm)

    embedding = model.embedding
    if config.positions == "learned":
        positions = array(embedding.position_embeddings)
    else:
        positions = array(sinusoids(np.arange(MAX_POSITIONS), config.d_model))
    embeddings = array(embedding.embeddings)
    spec.decoder.projection.weight = embeddings  # tied: one array, stored once
    for side, table in ((spec.encoder, spec.encoder.embeddings[0]), (spec.decoder, spec.decoder.embeddings)):
        table.weight = embeddings
        side.scale_embeddings = True  # by sqrt(d_model)
        side.position_encodings.encodings = positions
    return spec


def _widen(weight, num_heads: int, width: int):
    """Weights [h * d_k, d] as [h * width, d], each head followed by zeros."""
    heads = weight.reshape(num_heads, -1, weight.shape[-1])
    lacking = width - heads.shape[1]
    return np.pad(heads, [(0, 0), (0, lacking), (0, 0)]).reshape(num_heads * width, -1)
