"""A model as a MarianMT checkpoint of `transformers`: one of this family, or the paper's.

Marian's layers are the paper's but for this:

- All sines come before all cosines, so that the axes of d_model change places, in every weight.
- The start symbol is the padding, and gets the start symbol's row of the embeddings. It has no share of the
  probability; in the paper's models both symbols have one, about that of label smoothing.
- Projections have biases: zeros. Layer normalization's epsilon is 1e-5, and in the paper's models 1e-6.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.families.checkpoint import PLAIN, TABLES, unused
from tf_transformer.extensions.interop.families.marian.tokenizer import SOURCE, TARGET
from tf_transformer.extensions.interop.families.settings import longest_source, search_of, settings_of
from tf_transformer.extensions.interop.families.weights import NO_SHARE, Collection
from tf_transformer.masks import PAD_ID
from tf_transformer.models.families import Contents
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID

READ = ("q_proj", "k_proj", "v_proj", "fc1", "shared")  # what has d_model as the second axis of its weight


def write(translator: TextModel) -> Contents:
    """What a MarianMT checkpoint of a translator holds.

    Raises:
        BadInput: the model or the tokenizer does what Marian's does not.
    """
    model: Any = translator.model
    tokenizer = translator.tokenizer
    for name, got, allowed in (
        ("positions", model.embedding.positions, ("sinusoidal", "halves")),
        ("norm_first", model.config.norm_first, (False,)),
        ("languages", len(tokenizer.languages), (0,)),
    ):
        if got not in allowed:
            raise BadInput(f"{name}: expected {allowed[0]}, as MarianMT's models have it, got {got}")
    source, file = getattr(model, "source_embedding", None), "vocab.json"
    tables = [(file, TABLES[0], model.embedding, tokenizer.tokens)]
    if source is not None:
        tables = [(file, TABLES[1], source, tokenizer.source_tokens)]
        tables += [("target_vocab.json", TABLES[2], model.embedding, tokenizer.tokens)]
    weights, vocabularies, rows = Collection(), dict[str, dict[str, int]](), list[int]()
    weights.stacks(model)
    for file, name, embedding, tokens in tables:
        rows = _rows(embedding.vocab_size, shared=source is None)
        weights.assign(embedding.embeddings, name)
        weights.tensors[name] = weights.tensors[name][rows]
        vocabularies[file] = _numbered(tokens(range(embedding.vocab_size)), rows)
    padding = rows.index(BOS_ID)
    bias = np.zeros(len(rows), "float32")
    if model.embedding.use_bias:
        bias = keras.ops.convert_to_numpy(model.embedding.logits_bias)[rows]
    bias[padding] = NO_SHARE
    weights.assign(bias[np.newaxis], "final_logits_bias")
    if model.embedding.positions == "sinusoidal":
        _reorder(weights.tensors)
    symbols = {"pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": rows.index(EOS_ID)}
    search = {"bad_words_ids": [[padding]], "renormalize_logits": True}  # as OPUS-MT's checkpoints have it
    config = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "share_encoder_decoder_embeddings": source is None,
        "vocab_size": len(weights.tensors[tables[0][1]]),
        "decoder_vocab_size": len(rows),
    }
    tokens_config = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": source is not None,
        "pad_token": next(piece for piece, id in vocabularies[file].items() if id == padding),
    }
    if tokenizer.added:
        plain = {"special": False, **dict.fromkeys(PLAIN, False)}
        tokens_config["added_tokens_decoder"] = {
            str(vocabularies[file][token]): {"content": token} | plain for token in tokenizer.added
        }
    said = {name: translator.export_options.get(f"{name}uage") for name in ("source_lang", "target_lang")}
    engines = tokenizer.files if SOURCE in tokenizer.files else dict.fromkeys((SOURCE, TARGET), tokenizer.model)
    return Contents(
        weights.tensors,
        {
            "config.json": settings_of(translator) | config | symbols,
            "generation_config.json": search_of(translator) | symbols | search,
            "tokenizer_config.json": tokens_config | said | longest_source(translator),
            **vocabularies,
            **engines,
        },
    )


def _rows(size: int, shared: bool) -> list[int]:
    """Our ids in Marian's order, without our padding. The padding, which starts a target, is the last; where two
    vocabularies have it, `transformers` wants it in one place."""
    others = [*range(FIRST_ID, size)]
    return [EOS_ID, UNKNOWN_ID, *others, BOS_ID] if shared else [EOS_ID, UNKNOWN_ID, BOS_ID, *others]


def _numbered(pieces: Sequence[str], rows: list[int]) -> dict[str, int]:
    """Marian's ids, by piece; an id without a piece is left out."""
    padding = pieces[PAD_ID] or unused("<pad>", dict.fromkeys(pieces))
    own, found = {EOS_ID: "</s>", UNKNOWN_ID: "<unk>", BOS_ID: padding}, dict[str, int]()
    for place, id in enumerate(rows):
        if piece := own.get(id, pieces[id]):
            found.setdefault(piece, place)
    return found


def _reorder(tensors: dict[str, np.ndarray]) -> None:
    """Put the axes of d_model in Marian's order: those of all sines, then those of all cosines."""
    (name,) = {*TABLES} & tensors.keys()  # the paper's models have one
    order = np.arange(tensors[name].shape[1])
    order = np.concatenate([order[0::2], order[1::2]])
    for name, tensor in tensors.items():
        *_, layer, leaf = f"model.{name}".split(".")
        if layer in READ:
            tensors[name] = tensor[:, order] if leaf == "weight" else tensor
        elif leaf != "final_logits_bias":
            tensors[name] = tensor[order]
