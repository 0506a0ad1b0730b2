"""Write a run as a checkpoint of MarianMT, which Hugging Face's `transformers` loads, and `Translator.from_pretrained`.

A check of the reader in families/marian/ by a model that it did not come from. Marian's layers are those of the paper
but for this:

- All sines come before all cosines, so that the axes of d_model change places, in every weight.
- The start symbol is the padding, and gets the start symbol's embedding. It has no share of the probability there; here
  both have one, about that of label smoothing.
- Projections have biases: zeros. Layer normalization's epsilon is 1e-5, and here 1e-6.
- The tokenizer's normalization of texts is SentencePiece's alone; here a control character is a space before that.
"""

import argparse
import json
from pathlib import Path

import numpy as np


def main(argv=None) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.to_marian", None, __doc__, formatter_class=formatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the checkpoint goes; must not exist")
    args = parser.parse_args(argv)

    import tf_transformer as tt

    write(tt.load(args.run), args.folder)


def write(translator, path) -> None:
    """Write a `Translator`, of a `Transformer` or a `MarianTransformer`, as the folder of a checkpoint.

    Raises:
        BadInput: its model computes what Marian's does not.
        FileExistsError: path exists.
    """
    from safetensors.numpy import save_file

    from tf_transformer.base.files import new_folder, write_json
    from tf_transformer.text.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID, Tokenizer

    tokenizer: Tokenizer = translator.tokenizer
    rows = [EOS_ID, UNKNOWN_ID, *range(UNKNOWN_ID + 1, tokenizer.vocab_size), BOS_ID]  # Marian's order
    pieces = [piece.decode() for piece in tokenizer.pieces([rows]).numpy()[0]]
    vocabulary = {piece: id for id, piece in enumerate([*pieces[:-1], "<pad>"])}
    end, padding = 0, len(rows) - 1
    symbols = {"pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": end}
    symbols |= {"forced_eos_token_id": end}
    search = {"num_beams": translator.beam_size, "max_length": 512}
    search |= {"bad_words_ids": [[padding]], "renormalize_logits": True}  # as the checkpoints of OPUS-MT have it
    with new_folder(path) as folder:
        save_file(tensors(translator.model, rows), folder / "model.safetensors", {"format": "pt"})
        write_json(folder / "config.json", config(translator.model, len(rows)) | symbols)
        write_json(folder / "generation_config.json", symbols | search)
        write_json(folder / "tokenizer_config.json", {"tokenizer_class": "MarianTokenizer", "model_max_length": 512})
        (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        for name in ("source.spm", "target.spm"):
            (folder / name).write_bytes(tokenizer.model)


def config(model, vocab_size: int) -> dict:
    """A checkpoint's config.json, but for the symbols."""
    from tf_transformer.config import BadInput

    sizes, embedding = model.config, model.embedding
    for name, holds, expected in (
        ("positions", sizes.positions == "sinusoidal", "sinusoidal"),
        ("norm_first", not sizes.norm_first, False),
        ("attention_window", sizes.attention_window is None, None),
        ("d_k", sizes.d_k in (None, sizes.d_model // sizes.num_heads), None),
        ("d_v", sizes.d_v in (None, sizes.d_model // sizes.num_heads), None),
    ):
        if not holds:
            raise BadInput(f"{name}: expected {expected}, which Marian has, got {getattr(sizes, name)}")
    said = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "d_model": sizes.d_model,
        "activation_function": model.encoder_layers[0].feed_forward.hidden.activation.__name__,
        "scale_embedding": embedding.scale,
        "dropout": sizes.dropout,
        "attention_dropout": sizes.attention_dropout,
        "max_position_embeddings": 1024,
    }
    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        said[f"{side}_layers"] = len(layers)
        said[f"{side}_ffn_dim"] = layers[0].d_ff
        said[f"{side}_attention_heads"] = layers[0].num_heads
    return said


def tensors(model, rows: list[int]) -> dict[str, np.ndarray]:
    """The weights by their names in PyTorch; `rows` of the vocabulary, in this order."""
    embedding, d_model = model.embedding, model.config.d_model
    order = np.arange(d_model)
    if embedding.positions == "sinusoidal":
        order = np.concatenate([order[0::2], order[1::2]])  # all sines, then all cosines
    found = {}

    def put(name, array):
        found[name] = np.ascontiguousarray(array, "float32")

    def linear(name, layer):
        """[out, in] and [out], not in order."""
        bias = layer.bias.numpy() if layer.use_bias else np.zeros(layer.units)
        return (f"{name}.weight", layer.kernel.numpy().T), (f"{name}.bias", bias)

    def reads(name, layer):
        (weight, values), bias = linear(name, layer)
        put(weight, values[:, order])
        put(*bias)

    def writes(name, layer):
        for part, values in linear(name, layer):
            put(part, values[order])

    def norm(name, layer):
        put(f"{name}.weight", layer.norm.gamma.numpy()[order])
        put(f"{name}.bias", layer.norm.beta.numpy()[order])

    def attention(name, layer):
        reads(f"{name}.q_proj", layer.query_projection)
        reads(f"{name}.k_proj", layer.key_projection)
        reads(f"{name}.v_proj", layer.value_projection)
        writes(f"{name}.out_proj", layer.output_projection)

    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for i, layer in enumerate(layers):
            name = f"model.{side}.layers.{i}"
            attention(f"{name}.self_attn", layer.self_attention)
            norm(f"{name}.self_attn_layer_norm", layer.self_attention_norm)
            if side == "decoder":
                attention(f"{name}.encoder_attn", layer.cross_attention)
                norm(f"{name}.encoder_attn_layer_norm", layer.cross_attention_norm)
            reads(f"{name}.fc1", layer.feed_forward.hidden)
            writes(f"{name}.fc2", layer.feed_forward.output_projection)
            norm(f"{name}.final_layer_norm", layer.feed_forward_norm)
    put("model.shared.weight", embedding.embeddings.numpy()[rows][:, order])
    bias = embedding.logits_bias.numpy()[rows] if embedding.use_bias else np.zeros(len(rows))
    put("final_logits_bias", bias[np.newaxis])
    return found


if __name__ == "__main__":
    main()
