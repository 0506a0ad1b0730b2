"""What the files of a checkpoint say beside its weights and vocabulary, whatever its family: for `Family.write`."""

from typing import Any

from tf_transformer.decoding.text_model import TextModel

POSITIONS = 1024  # the least size of the table of positions; `transformers` reads no longer text than its table


def settings_of(translator: TextModel) -> dict[str, Any]:
    """The settings of config.json that tell of the layers; those of a stack are alike."""
    model: Any = translator.model
    longest = translator.max_source_length + translator.extra_length
    said = {
        "is_encoder_decoder": True,
        "d_model": model.config.d_model,
        "activation_function": model.config.activation,
        "scale_embedding": model.embedding.scale,
        "dropout": model.config.dropout,
        "attention_dropout": model.config.attention_dropout,
        "activation_dropout": 0.0,
        "max_position_embeddings": max(POSITIONS, longest + 2),
        "tie_word_embeddings": True,
    }
    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        sizes = {"layers": len(layers), "ffn_dim": layers[0].d_ff, "attention_heads": layers[0].num_heads}
        said |= {f"{side}_{name}": value for name, value in (sizes | {"layerdrop": 0.0}).items()}
    return said


def search_of(translator: TextModel) -> dict[str, Any]:
    """The settings of generation_config.json that are a translator's own. There max_length counts what begins a target,
    and the length penalty is n^length_penalty."""
    longest = translator.max_source_length + translator.extra_length
    longest = min(longest, translator.export_options.get("max_length", longest))
    return {
        "num_beams": translator.beam_size,
        "length_penalty": translator.length_penalty,
        "max_length": longest + 1 + translator.tokenizer.codes,
    }


def longest_source(translator: TextModel) -> dict[str, Any]:
    """The setting of tokenizer_config.json for the longest source, with its end symbol and its language."""
    return {"model_max_length": translator.max_source_length + 1 + translator.tokenizer.codes}
