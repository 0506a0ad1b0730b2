"""The family of MarianMT: how its checkpoints are read, and how a model of it, or of the paper, becomes one."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel
from tf_transformer.extensions.interop.families.checkpoint import PLAIN, TABLES, settings_of, unused
from tf_transformer.extensions.interop.families.marian.files import DECODER, MarianCheckpoint, NativeCheckpoint
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.extensions.interop.families.marian.tokenizer import SOURCE, TARGET, MarianTokenizer
from tf_transformer.extensions.interop.families.weights import NO_SHARE, float32, tensors_of
from tf_transformer.masks import PAD_ID
from tf_transformer.models.families import Contents, Family
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID
from tf_transformer.utils.files import user_path

READ = ("q_proj", "k_proj", "v_proj", "fc1", "shared")  # weights whose second axis is d_model


def checkpoint_in(folder: str | os.PathLike[str]) -> MarianCheckpoint:
    """Returns the checkpoint in a directory, in Hugging Face's format or else in Marian's."""
    folder = user_path(folder)
    for name, kind in (("config.json", MarianCheckpoint), (DECODER, NativeCheckpoint)):
        if (folder / name).is_file():
            return kind(folder)
    raise BadInput(f"expected a checkpoint of MarianMT, found neither config.json nor {DECODER} in {folder}")


def write(translator: TextModel) -> Contents:
    """Returns the contents of a MarianMT checkpoint.

    Marian's layers differ from the paper's:

    - All sines precede all cosines, which reorders the axes of d_model in every weight.
    - Padding is also BOS, and gets BOS's row of the embedding table. Its probability is 0. In the paper's models both
      have one, about that of label smoothing.
    - Projections have biases, here zeros. Layer normalization's epsilon is 1e-5, and in the paper's models 1e-6.
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
    tensors, vocabularies, rows = tensors_of(model), dict[str, dict[str, int]](), list[int]()
    for file, name, embedding, tokens in tables:
        # Our ids in Marian's order. Padding is last, but `transformers` requires one id of two vocabularies.
        ordinary = [*range(FIRST_ID, embedding.vocab_size)]
        rows = [EOS_ID, UNKNOWN_ID, *ordinary, BOS_ID] if source is None else [EOS_ID, UNKNOWN_ID, BOS_ID, *ordinary]
        tensors[name] = float32(embedding.embeddings)[rows]
        vocabularies[file] = _numbered(tokens(range(embedding.vocab_size)), rows)
    padding = rows.index(BOS_ID)
    has_bias = model.embedding.use_bias
    bias = float32(model.embedding.logits_bias)[rows] if has_bias else np.zeros(len(rows), "float32")
    bias[padding] = NO_SHARE
    tensors["final_logits_bias"] = bias[np.newaxis]
    if model.embedding.positions == "sinusoidal":
        _reorder(tensors)
    control_ids = {"pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": rows.index(EOS_ID)}
    config = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "share_encoder_decoder_embeddings": source is None,
        "vocab_size": len(tensors[tables[0][1]]),
        "decoder_vocab_size": len(rows),
    }
    tokens_config: dict[str, Any] = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": source is not None,
        "pad_token": next(piece for piece, id in vocabularies[file].items() if id == padding),
    }
    if tokenizer.added:
        tokens_config["added_tokens_decoder"] = {
            str(vocabularies[file][token]): {"content": token, "special": False} | PLAIN for token in tokenizer.added
        }
    tokens_config |= {name: translator.export_options.get(f"{name}uage") for name in ("source_lang", "target_lang")}
    engines = tokenizer.files if SOURCE in tokenizer.files else dict.fromkeys((SOURCE, TARGET), tokenizer.model)
    # As OPUS-MT's checkpoints have it.
    search = {"bad_words_ids": [[padding]], "renormalize_logits": True}
    of_layers, of_search, of_tokens = settings_of(translator)
    files = {
        "config.json": of_layers | config | control_ids,
        "generation_config.json": of_search | control_ids | search,
        "tokenizer_config.json": tokens_config | of_tokens,
    }
    return Contents(tensors, files | vocabularies | engines)


def _numbered(pieces: Sequence[str], rows: list[int]) -> dict[str, int]:
    """Returns Marian's ids by token, without ids that have none."""
    padding = pieces[PAD_ID] or unused("<pad>", dict.fromkeys(pieces))
    controls, ids = {EOS_ID: "</s>", UNKNOWN_ID: "<unk>", BOS_ID: padding}, dict[str, int]()
    for row, id in enumerate(rows):
        if piece := controls.get(id, pieces[id]):
            ids.setdefault(piece, row)
    return ids


def _reorder(tensors: dict[str, np.ndarray]) -> None:
    """Reorders the axes of d_model as Marian has them: all sines, then all cosines."""
    (name,) = {*TABLES} & tensors.keys()  # The paper's models have one table.
    order = np.arange(tensors[name].shape[1])
    order = np.concatenate([order[0::2], order[1::2]])
    for name, tensor in tensors.items():
        *_, layer, leaf = f"model.{name}".split(".")
        if layer in READ:
            tensors[name] = tensor[:, order] if leaf == "weight" else tensor
        elif leaf != "final_logits_bias":
            tensors[name] = tensor[order]


FAMILY = Family(
    "marian",
    MarianConfig,
    MarianTransformer,
    MarianTokenizer,
    recognizes=lambda folder: (folder / SOURCE).is_file(),
    load=lambda folder: checkpoint_in(folder).load(),
    write=write,
    owner="Helsinki-NLP",  # OPUS-MT
)
