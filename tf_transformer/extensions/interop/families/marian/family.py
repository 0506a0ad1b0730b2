"""The family of MarianMT: how its checkpoints are read, and how a model of it, or of the paper, becomes one.

Files are those of `transformers`, or of Marian itself (https://marian-nmt.github.io).

OPUS-MT and the Tatoeba Challenge publish Marian's format: decoder.yml, which names the other files, weights, which
include the model's options, vocabularies, source.spm and target.spm. It needs PyYAML. A vocabulary may also be a
SentencePiece model, as in Mozilla's models, whose decoder has an SSRU.

As in `transformers` and CTranslate2, positions are the paper's. Marian's frequencies are 10000^(-2i / (d_model - 2)),
not 10000^(-2i / d_model), and the epsilon of its layer normalization differs. Models with an SSRU are exact.
"""

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tf_transformer.config import ACTIVATIONS, BadInput, TransformerConfig
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.families.checkpoint import (
    CONTROL_TOKENS,
    DEFAULTS,
    PLAIN,
    TABLES,
    Checkpoint,
    Vocabulary,
    check_settings,
    settings_of,
    unused,
)
from tf_transformer.extensions.interop.families.hub import parse_yaml, readme_of
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.extensions.interop.families.marian.ssru import SSRUConfig, SSRUTransformer, names_of
from tf_transformer.extensions.interop.families.marian.tokenizer import (
    SOURCE,
    SOURCE_VOCABULARY,
    TARGET,
    MarianTokenizer,
)
from tf_transformer.extensions.interop.families.pieces import VOCABULARY
from tf_transformer.extensions.interop.families.weights import NO_SHARE, Assignment, Readers, float32, tensors_of
from tf_transformer.masks import PAD_ID
from tf_transformer.models.families import Contents, Family
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID, engine_of
from tf_transformer.utils.files import user_path
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.reading import read_bytes, read_npz, reading

READ = ("q_proj", "k_proj", "v_proj", "fc1", "shared")  # weights whose second axis is d_model
ALIGNED = re.compile(rb"^\W*model:\W*transformer(-\w+)?-align\b", re.MULTILINE)  # a line of OPUS-MT's README.md
DECODER, SPM = "decoder.yml", ".spm"
OPTIONS = "special:model.yml"  # array in the file of weights that holds the options, as bytes of YAML
# The allowed values of each option. The first is the default, except for the type and the cell. Options that are not
# listed, such as those of average attention, have no effect in these models.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention", "rnn"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-ffn-activation": ("swish", "relu"),  # Marian's gelu is not that of `transformers`
    "transformer-attention-mask": ("default",),
    **dict.fromkeys(("lemma-dim-emb", "factors-dim-emb"), ("0",)),
    **dict.fromkeys(("transformer-tied-layers", "input-types"), ([],)),
    **dict.fromkeys(("transformer-no-projection", "transformer-no-bias", "transformer-no-affine"), ("false",)),
    **dict.fromkeys(("transformer-train-position-embeddings", "transformer-train-positions"), ("false",)),
    **dict.fromkeys(("transformer-disable-position-embeddings", "transformer-pool"), ("false",)),
    **dict.fromkeys(("right-left", "ulr", "output-omit-bias"), ("false",)),
}
# `transformers` has no others, and Marian decodes otherwise than it trains if only keys of new tokens are normalized.
EXPECTED_OF_ATTENTION: dict[str, tuple[Any, ...]] = {
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan",),
    "transformer-postprocess-top": ("",),
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("0", "2"),
}
EXPECTED_OF_SSRU: dict[str, tuple[Any, ...]] = {
    "dec-cell": ("ssru",),
    **dict.fromkeys(("transformer-rnn-projection", "layer-normalization"), ("false",)),
    "transformer-postprocess-top": ("", "n"),
}
EMBEDDINGS = {
    "Wemb": "model.shared.weight",
    "encoder_Wemb": "model.encoder.embed_tokens.weight",
    "decoder_Wemb": "model.decoder.embed_tokens.weight",
}
NUMBER = re.compile("[0-9]{1,18}")
# Names inside a layer, and those of `transformers`.
_LEAVES = (("W", "weight"), ("b", "bias"))
LAYER = {f"ffn_{kind}{number}": f"fc{number}.{leaf}" for kind, leaf in _LEAVES for number in "12"}
LAYER |= {
    f"{part}_{kind}{letter}": f"{attention}.{projection}_proj.{leaf}"
    for part, attention in (("self", "self_attn"), ("context", "encoder_attn"))
    for letter, projection in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "out"))
    for kind, leaf in _LEAVES
}
LAYER |= {
    f"{part}_ln_{kind}": f"{norm}_layer_norm.{leaf}"
    for part, norm in (("self_Wo", "self_attn"), ("context_Wo", "encoder_attn"), ("ffn_ffn", "final"))
    for kind, leaf in (("scale", "weight"), ("bias", "bias"))
}


class MarianCheckpoint(Checkpoint):
    """A directory with config.json, vocab.json, source.spm, target.spm and one of the files of `hub.WEIGHTS`."""

    config_kind, model_kind, tokenizer_kind = MarianConfig, MarianTransformer, MarianTokenizer
    defaults: ClassVar[Mapping[str, Any]] = {
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "scale_embedding": False,
        "vocab_size": 58101,
        "pad_token_id": 58100,
        "share_encoder_decoder_embeddings": True,
    }
    allowed: ClassVar[Mapping[str, Sequence[Any]]] = {
        "model_type": ("marian",),
        "activation_function": ACTIVATIONS,
        **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), (False,)),
        **dict.fromkeys(("static_position_embeddings", "tie_word_embeddings"), (True,)),
    }

    @property
    def shared(self) -> bool:  # type: ignore[override]
        return self.settings["share_encoder_decoder_embeddings"]

    @property
    def target_size(self) -> str:
        """Setting of the number of target tokens."""
        return "decoder_vocab_size" if not self.shared and self.settings.get("decoder_vocab_size") else "vocab_size"

    def config(self, **fields: Any) -> TransformerConfig:
        source_size = None if self.shared else self.settings["vocab_size"]
        sizes = {"vocab_size": self.settings[self.target_size], "source_vocab_size": source_size}
        heads = 1 if ALIGNED.search(readme_of(self.folder)) else None
        return super().config(**(sizes | {"alignment_heads": heads} | fields))

    def vocabulary(self, side: str) -> Vocabulary:
        settings, (file, ids) = self.settings, self.ids(side)
        size = self.size("vocab_size" if side == "source" else self.target_size)
        added_ids = self.added_ids(file, ids)
        all_ids = ids | added_ids
        first = {name: all_ids.get(name) for name in CONTROL_TOKENS}
        # Only a target starts with BOS, so the settings are the target's.
        if side == "source":
            first["<s>"] = first["<pad>"]
        else:
            pad, end = settings["pad_token_id"], first["</s>"]
            first = {
                "pad_token_id": pad,
                "decoder_start_token_id": settings.get("decoder_start_token_id", pad),
                "eos_token_id" if "eos_token_id" in settings else "</s>": settings.get("eos_token_id", end),
                "<unk>": first["<unk>"],
            }
        self.check_ids(file, ids, added_ids, first, size)
        controls: list[Any] = [*first.values()]
        rows = controls + [id for id in range(size) if id not in controls]
        names = {id: piece for piece, id in all_ids.items()}
        pieces = [names.get(id, "") for id in rows]
        pieces[1] = unused("<s>", all_ids)
        codes = [token for token in self.added if re.fullmatch(">>.*<<", token)]
        added = self.matched(all_ids, [*CONTROL_TOKENS, *codes, *(names[id] for id in rows[:4] if id in names)])
        return Vocabulary(pieces, rows, added=dict.fromkeys(added, False))

    def ids(self, side: str) -> tuple[Path, dict[str, Any]]:
        """Returns the file of a side's vocabulary, and its ids by token."""
        name = "vocab.json"
        if side == "target" and not self.shared:
            settings = self.read_optional("tokenizer_config.json")
            if settings.get("separate_vocabs", (self.folder / "target_vocab.json").is_file()):
                name = "target_vocab.json"
        return self.folder / name, self.read(name)

    @property
    def engine_files(self) -> Sequence[str]:
        """Names of the SentencePiece models of source and target."""
        return SOURCE, TARGET

    def archive(self) -> dict[str, Any]:
        names = zip((SOURCE, TARGET), self.engine_files, strict=True)
        contents: dict[str, Any] = {name: self.sentencepiece(file) for name, file in names}
        contents[VOCABULARY] = self.target.pieces
        return contents if self.shared else contents | {SOURCE_VOCABULARY: self.source.pieces}


class NativeCheckpoint(MarianCheckpoint):
    """A release of Marian, read as the files of Hugging Face would be."""

    @property
    def decoder(self) -> dict[str, Any]:
        """Contents of decoder.yml."""
        return self.read(self.decoder_file, _read_yaml)

    @functools.cached_property
    def decoder_file(self) -> str:
        """Name of decoder.yml, which may follow the name of the weights."""
        names = _decoder_files(self.folder)
        if len(names) != 1:
            raise BadInput(f"{self.folder}: expected one file decoder.yml, found {', '.join(names)}")
        return names[0]

    @property
    def engine_files(self) -> Sequence[str]:
        names = self.file_names("vocabs")
        return names if all(name.endswith(SPM) for name in names) else super().engine_files

    def file_names(self, key: str) -> list[str]:
        """Returns names of files in decoder.yml, without the directories of the training machine."""
        names = self.decoder.get(key)
        return [str(name).rsplit("/", 1)[-1] for name in (names if isinstance(names, list) else [names])]

    @functools.cached_property
    def settings_file(self) -> Path:
        """File of the weights, which includes the options."""
        names = self.file_names("models")
        if len(names) != 1 or not names[0].endswith(".npz"):
            expected = "expected one file .npz, since neither ensembles nor quantized weights (.bin) are read"
            raise BadInput(f"{self.folder / self.decoder_file}: models: {expected}, got {', '.join(names)}")
        return self.folder / names[0]

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        arrays = self.read(self.settings_file.name, read_npz, named_by=self.decoder_file)
        with reading(self.settings_file, f"the options of a model of Marian in {OPTIONS}"):
            yaml = import_extra("yaml", "marian", "a model of Marian")
            options = parse_yaml(yaml, arrays[OPTIONS].tobytes().rstrip(b"\0"))
            settings = {**DEFAULTS, **self.defaults, **_settings_of(options)}
        if NUMBER.fullmatch(str(self.decoder.get("beam-size"))):
            settings["num_beams"] = int(self.decoder["beam-size"])
        return settings

    def ids(self, side: str) -> tuple[Path, dict[str, Any]]:
        names, where = self.file_names("vocabs"), f"{self.folder / self.decoder_file}: vocabs"
        if len(names) != 2:
            raise BadInput(f"{where}: expected two, for source and target, got {', '.join(names)}")
        if self.shared and names[0] != names[1]:
            raise BadInput(f"{where}: expected one for source and target, as for embeddings, got {', '.join(names)}")
        name, size = (names[0], "vocab_size") if side == "source" else (names[1], "decoder_vocab_size")
        # Marian has no padding. Its vocabularies may have more tokens than the model.
        padding = self.settings[size] - 1
        is_engine = name.endswith(SPM)
        ids = self.read(name, read_bytes if is_engine else _read_vocabulary, named_by=self.decoder_file)
        if is_engine:
            engine = engine_of(self.sentencepiece(name))
            ids = {engine.id_to_piece(id): id for id in range(engine.get_piece_size())}
        used = {piece: id for piece, id in ids.items() if not isinstance(id, int) or id < padding}
        return self.folder / name, used | {unused("<pad>", used): padding}

    def weights(self) -> tuple[Path, Readers]:
        tensors = Readers()
        for name, array in self.read(self.settings_file.name, read_npz, named_by=self.decoder_file).items():
            if name == OPTIONS:
                continue
            if array.dtype.kind != "f":
                expected = "expected floating-point weights, since others are not read"
                raise BadInput(f"{self.settings_file}: {name}: {expected}, got {array.dtype}")
            # Padding gets zeros.
            if name in EMBEDDINGS:
                tensors[EMBEDDINGS[name]] = functools.partial(np.pad, np.atleast_2d(array), [(0, 1), (0, 0)])
            elif name == "decoder_ff_logit_out_b":
                tensors["final_logits_bias"] = functools.partial(np.pad, array.ravel(), (0, 1))
            else:
                name, read = self.tensor(name, array)
                tensors[name] = read
        return self.settings_file, tensors

    def tensor(self, name: str, array: np.ndarray) -> tuple[str, Callable[[], np.ndarray]]:
        """Returns an array of a layer, which is [in, out] or a vector [1, d], by the name of `transformers`."""
        read = functools.partial(np.transpose if re.search(r"_W[qkvo12]$", name) else np.ravel, array)
        # Marian counts layers from 1.
        if (layer := re.fullmatch(r"(encoder|decoder)_l(\d+)_(.*)", name)) and layer[3] in LAYER:
            name = f"model.{layer[1]}.layers.{int(layer[2]) - 1}.{LAYER[layer[3]]}"
        return name, read


class SSRUCheckpoint(NativeCheckpoint):
    """A release of Marian whose decoder has an SSRU. Its weights keep Marian's names."""

    config_kind, model_kind = SSRUConfig, SSRUTransformer

    def config(self, **fields: Any) -> TransformerConfig:
        names = ("preprocess", "postprocess", "postprocess_top", "ffn_depth", "decoder_ffn_depth", "tied_output")
        own = {name: self.settings[name] for name in names}
        # Marian takes alignments from the first head of the last layer.
        return super().config(**(own | {"alignment_heads": 1} | fields))

    def tensor(self, name: str, array: np.ndarray) -> tuple[str, Callable[[], np.ndarray]]:
        if name == "decoder_ff_logit_out_W":
            name, array = f"{name}t", array.T
        if name == "decoder_ff_logit_out_Wt":
            return name, functools.partial(np.pad, np.atleast_2d(array), [(0, 1), (0, 0)])
        return name, functools.partial(np.asarray if re.search(r"_W([qkvof]|\d+)?$", name) else np.ravel, array)

    def assign_layers(self, weights: Assignment, model: Any) -> None:
        for name, variable in names_of(model):
            weights.assign(variable, name, weights.take(name))
        if not model.config.tied_output:
            weights.table(model.pre_softmax.embeddings, ["decoder_ff_logit_out_Wt"], self.target.rows)


def _settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Converts Marian's options to the settings of Hugging Face."""

    def number(name: str, got: Any = None) -> int:
        got = options.get(name) if got is None else got
        if not NUMBER.fullmatch(str(got)):
            raise BadInput(f"{name}: expected a number, got {got!r}")
        return int(got)

    check_settings({"type": None, **options}, EXPECTED)
    is_recurrent = options.get("transformer-decoder-autoreg") == "rnn"
    check_settings({"dec-cell": None, **options}, EXPECTED_OF_SSRU if is_recurrent else EXPECTED_OF_ATTENTION)
    shared = tied = options.get("tied-embeddings-all") == "true"
    if not shared:
        tied = options.get("tied-embeddings") == "true"
        if not is_recurrent:
            check_settings({"tied-embeddings": None, **options}, {"tied-embeddings": ("true",)})
        shared = options.get("tied-embeddings-src") == "true"
    sizes = options.get("dim-vocabs")
    if not isinstance(sizes, list) or len(sizes) != 2 or (shared and sizes[0] != sizes[1]):
        raise BadInput(f"dim-vocabs: expected {'one number twice' if shared else 'two numbers'}, got {sizes!r}")
    source_size, size = (number("dim-vocabs", each) for each in sizes)
    heads, width = number("transformer-heads"), number("transformer-dim-ffn")
    # 0 means the encoder's width.
    decoder_width = number("transformer-decoder-dim-ffn", options.get("transformer-decoder-dim-ffn", "0"))
    more: dict[str, Any] = {}
    if is_recurrent:
        depth = number("transformer-ffn-depth", options.get("transformer-ffn-depth", "2"))
        # 0 means the encoder's depth.
        decoder_depth = number("transformer-decoder-ffn-depth", options.get("transformer-decoder-ffn-depth", "0"))
        more = {"ffn_depth": depth, "decoder_ffn_depth": decoder_depth or depth, "tied_output": tied}
        more |= {"postprocess_top": options.get("transformer-postprocess-top", "")}
        for name, default, letters in (("preprocess", "", "dn"), ("postprocess", "dan", "dan")):
            value = options.get(f"transformer-{name}", default)
            if not isinstance(value, str) or not {*value} <= {*letters}:
                expected = f"expected operations of {', '.join(letters)}"
                raise BadInput(f"transformer-{name}: {expected}, which are read here, got {value!r}")
            more[name] = value
    return more | {
        "model_type": "marian",
        "share_encoder_decoder_embeddings": shared,
        # One more token than Marian has, for padding and BOS. Marian starts a target with zeros instead.
        "vocab_size": source_size + 1,
        "decoder_vocab_size": size + 1,
        "pad_token_id": size,
        "d_model": number("dim-emb"),
        "encoder_layers": number("enc-depth"),
        "decoder_layers": number("dec-depth"),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": width,
        "decoder_ffn_dim": decoder_width or width,
        "activation_function": options.get("transformer-ffn-activation", "swish"),
        "scale_embedding": True,
    }


def _read_vocabulary(file: Path) -> dict[str, Any]:
    """Reads ids by token: YAML by its suffix, or else a token per line, the first with id 0."""
    if file.suffix in (".yml", ".yaml", ".json"):
        return {piece: int(id) if NUMBER.fullmatch(str(id)) else id for piece, id in _read_yaml(file).items()}
    with reading(file, "a vocabulary in UTF-8"):
        lines = read_bytes(file).decode().replace("\r\n", "\n").removesuffix("\n").split("\n")
    return {piece: id for id, piece in enumerate(lines)}


def _read_yaml(file: Path) -> dict[str, Any]:
    with reading(file, "a mapping of YAML"):
        return parse_yaml(import_extra("yaml", "marian", "a model of Marian"), read_bytes(file))


def _decoder_files(folder: Path) -> list[str]:
    """Returns the names of the files decoder.yml in a directory, or only the one that Marian writes last."""
    for name in (DECODER, f"model.npz.{DECODER}"):
        if (folder / name).is_file():
            return [name]
    return sorted(file.name for file in folder.glob(f"*.{DECODER}"))


def checkpoint_in(folder: str | os.PathLike[str]) -> MarianCheckpoint:
    """Returns the checkpoint in a directory, in Hugging Face's format or else in Marian's."""
    folder = user_path(folder)
    if (folder / "config.json").is_file():
        return MarianCheckpoint(folder)
    if _decoder_files(folder):
        native = NativeCheckpoint(folder)
        return SSRUCheckpoint(folder) if "ffn_depth" in native.settings else native
    raise BadInput(f"expected a checkpoint of MarianMT, found neither config.json nor {DECODER} in {folder}")


def write(translator: TensorTranslator) -> Contents:
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
        vocabularies[file] = _ids_by_token(tokens(range(embedding.vocab_size)), rows)
    padding = rows.index(BOS_ID)
    has_bias = model.embedding.use_bias
    bias = float32(model.embedding.logits_bias)[rows] if has_bias else np.zeros(len(rows), "float32")
    bias[padding] = NO_SHARE
    tensors["final_logits_bias"] = bias[np.newaxis]
    if model.embedding.positions == "sinusoidal":
        _reorder(tensors)
    ids = {"pad_token_id": padding, "decoder_start_token_id": padding, "eos_token_id": rows.index(EOS_ID)}
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
    return Contents(
        tensors, settings_of(translator, config | ids, ids | search, tokens_config) | vocabularies | engines
    )


def _ids_by_token(pieces: Sequence[str], rows: list[int]) -> dict[str, int]:
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
    recognizes=lambda folder: (folder / SOURCE).is_file() or bool(_decoder_files(folder)),
    load=lambda folder: checkpoint_in(folder).load(),
    write=write,
    owner="Helsinki-NLP",  # OPUS-MT
)
