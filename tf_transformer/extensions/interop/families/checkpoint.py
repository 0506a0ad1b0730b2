"""Base of the families: pretrained checkpoints in the format of Hugging Face's `transformers`."""

import dataclasses
import functools
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.families.hub import WEIGHTS
from tf_transformer.extensions.interop.families.pieces import ADDED, PieceTokenizer, archive_of
from tf_transformer.extensions.interop.families.weights import (
    NO_SHARE,
    READERS,
    SINUSOIDS,
    Assignment,
    Readers,
    check_rows,
)
from tf_transformer.models.families import Pretrained
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import EOS_ID, engine_of
from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import check_file, made_of, read_bytes, read_json, reading

MAX_TOKENS = 2**24  # maximum size of a vocabulary without weights
POSITIONS = 1024  # minimum size of the position table, since `transformers` reads no longer texts
CONTROL_TOKENS = ("<pad>", "<s>", "</s>", "<unk>")
TABLES = [f"model.{module}.weight" for module in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")]
# Fields of a configuration, and their names in config.json.
FIELDS = {name: name for name in ("d_model", "dropout", "attention_dropout", "vocab_size", "scale_embedding")} | {
    "num_layers": "encoder_layers",
    "num_decoder_layers": "decoder_layers",
    "d_ff": "encoder_ffn_dim",
    "decoder_d_ff": "decoder_ffn_dim",
    "num_heads": "encoder_attention_heads",
    "num_decoder_heads": "decoder_attention_heads",
    "activation": "activation_function",
}
# Files only have values that differ from these.
DEFAULTS: dict[str, Any] = {"d_model": 1024, "dropout": 0.1} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 12), ("ffn_dim", 4096), ("attention_heads", 16))
}
PLAIN = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)  # flags of added tokens that we write
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Vocabulary(NamedTuple):
    """A checkpoint's vocabulary by our ids: padding, BOS, EOS, unknown, then the checkpoint's others in its order."""

    pieces: list[str]  # tokens by our id, "" if the checkpoint has none
    rows: list[int]  # the checkpoint's ids, by ours
    languages: Mapping[str, int] = {}  # our ids, by code
    silent: Sequence[int] = ()  # our ids without a text
    added: Mapping[str, bool] = {}  # those of `Tokenizer.added`


class Added(NamedTuple):
    """A token that a tokenizer's files list in addition to its vocabulary, or once more."""

    id: int
    is_special: bool  # dropped from outputs
    single_word: bool  # only matched between characters that are not part of a word
    is_spaced: bool  # Whitespace before it is also a token, in `tokenizers`.


class Checkpoint:
    """A pretrained checkpoint in a directory. Each of its files is read once, when it is first used.

    A family derives from it and defines `vocabulary` and `archive`. Anything wrong with a file raises a one-line
    `BadInput`.

    Attributes:
        config_kind, model_kind, tokenizer_kind: Classes of the family.
        defaults: Settings that its files omit, in addition to `DEFAULTS`.
        allowed: Settings that are only checked, and the values that they may have.
        shared: Whether source and target share a vocabulary.
        folder: Path of the directory.
    """

    config_kind: type[TransformerConfig]
    model_kind: type[Transformer]
    tokenizer_kind: type[PieceTokenizer]
    defaults: ClassVar[Mapping[str, Any]]
    allowed: ClassVar[Mapping[str, Sequence[Any]]]
    shared = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = user_path(folder)
        self.kind = self.tokenizer_kind.kind  # for messages
        self._contents: dict[str, Any] = {}

    def load(self) -> Pretrained:
        """Loads model, tokenizer and options."""
        model, tokenizer, options = self.model(), self.tokenizer(), self.options()
        return Pretrained(model, tokenizer, options, max_length=options.pop("max_length", None))

    # Files.

    def read(self, name: str, parse: Callable[[Path], Any] = read_json, named_by: str = "") -> Any:
        """Reads a file that must exist. `named_by` is the file that names it, for messages."""
        if name not in self._contents:
            if not (self.folder / name).is_file():
                names = f", which {named_by} names," * bool(named_by)
                raise BadInput(f"expected a checkpoint of {self.kind}, found no {name}{names} in {self.folder}")
            self._contents[name] = parse(self.folder / name)
        return self._contents[name]

    def read_optional(self, name: str) -> dict[str, Any]:
        """Returns the object in a JSON file, or {} if the file does not exist."""
        return self.read(name) if (self.folder / name).is_file() else {}

    def sentencepiece(self, name: str) -> bytes:
        """Reads a serialized SentencePiece model."""
        model = self.read(name, read_bytes)
        with reading(self.folder / name, "a SentencePiece model"):
            engine_of(model)
        return model

    @functools.cached_property
    def settings_file(self) -> Path:
        """File of the settings, for messages."""
        return self.folder / "config.json"

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Settings by their names in config.json."""
        return {**DEFAULTS, **self.defaults, **self.read("config.json")}

    @functools.cached_property
    def stored(self) -> int:
        """Size of the files of weights in bytes."""
        patterns = ("*.safetensors", "*.h5", "*.bin", "*.npz")
        files = [file for pattern in patterns for file in self.folder.glob(pattern)]
        return sum(check_file(file).stat().st_size for file in files)

    def weights(self) -> tuple[Path, Readers]:
        """Returns the first existing file of `WEIGHTS`, and its tensors by PyTorch's names."""
        for name in WEIGHTS:
            if (self.folder / name).is_file():
                with reading(file := check_file(self.folder / name), f"the weights of {self.kind}"):
                    return file, self.read(name, READERS[name])
        raise BadInput(f"expected a checkpoint of {self.kind}, found none of {', '.join(WEIGHTS)} in {self.folder}")

    # What is made of them.

    def config(self, **fields: Any) -> TransformerConfig:
        """Returns the configuration of the model, without our own tokens. `fields` override settings."""
        check_settings(self.settings, self.allowed)
        return made_of(self.config_kind, {field: self.settings[name] for field, name in FIELDS.items()} | fields)

    def vocabulary(self, side: str) -> Vocabulary:
        """Reads the vocabulary of "source" or "target". The latter is for both if it is `shared`."""
        raise NotImplementedError

    def archive(self) -> dict[str, Any]:
        """Returns the contents of the tokenizer's archive, for `archive_of`."""
        raise NotImplementedError

    @functools.cached_property
    def target(self) -> Vocabulary:
        """Vocabulary of targets."""
        return self.vocabulary("target")

    @functools.cached_property
    def source(self) -> Vocabulary:
        """Vocabulary of sources."""
        return self.target if self.shared else self.vocabulary("source")

    def tokenizer(self) -> PieceTokenizer:
        """Makes the tokenizer."""
        with reading(self.folder, f"the tokenizer of {self.kind}"):
            added = {ADDED: self.target.added} if self.target.added else {}
            return self.tokenizer_kind(archive_of(self.archive() | added))

    def model(self) -> Transformer:
        """Makes the model, with its weights in our order of ids."""
        file, tensors = self.weights()
        with reading(self.settings_file, f"the settings of {self.kind}"):
            # Wrong sizes must not take all memory, so the weights of this configuration must fit into the files.
            config = self.config()
            config.check_stored(self.stored)
        sizes: dict[str, Any] = {"vocab_size": len(self.target.rows)}
        if not self.shared:
            sizes["source_vocab_size"] = len(self.source.rows)
        model: Any = self.model_kind(dataclasses.replace(config, **sizes))
        model.build()
        with reading(file, f"the weights of {self.kind}"):
            weights = Assignment(tensors)
            self.assign_layers(weights, model)
            # The file has one table under one or several of these names.
            names, rows = TABLES, self.target.rows
            if not self.shared:
                weights.table(model.source_embedding.embeddings, names[1:2], self.source.rows)
                names = names[2:]
            weights.table(model.embedding.embeddings, [*names, "lm_head.weight"], rows)
            bias = np.zeros(len(rows), "float32")
            if "final_logits_bias" in weights.left:
                biases = weights.take("final_logits_bias").ravel()
                check_rows(biases, rows)
                bias = biases[rows]
            bias[:EOS_ID] = NO_SHARE  # padding and BOS
            model.pre_softmax.logits_bias.assign(bias)
            if left := weights.left.keys() - SINUSOIDS:
                raise BadInput(f"expected the tensors of {self.kind}, found also {', '.join(sorted(left)[:3])}")
        return model

    def assign_layers(self, weights: Assignment, model: Any) -> None:
        """Assigns the weights of encoder and decoder."""
        weights.layers(model)

    def options(self) -> dict[str, Any]:
        """Returns options of the search that mean the same here: beam_size, at most a request's, and max_length."""
        settings = self.settings | self.read_optional("generation_config.json")
        # `transformers` also counts the tokens that start a target.
        first = 1 + self.tokenizer_kind.num_language_tokens
        stated = {"beam_size": (settings.get("num_beams"), 0), "max_length": (settings.get("max_length"), first)}
        options = {name: value - less for name, (value, less) in stated.items() if type(value) is int and value > less}
        if "beam_size" in options:
            options["beam_size"] = min(options["beam_size"], SEARCH_OPTIONS["beam_size"].highest)
        return options

    # For the families.

    def size(self, name: str) -> int:
        """Returns the setting of a vocabulary's size, for each of which the files of weights must have a row."""
        size, limit = self.settings[name], self.stored or MAX_TOKENS
        if type(size) is not int or not 0 < size <= limit:
            raise BadInput(f"{self.settings_file}: {name}: expected a number up to {limit:,}, got {str(size)[:99]!r}")
        return size

    def check_ids(
        self, file: Path, ids: dict[str, Any], more: dict[str, Any], first: dict[str, Any], size: int
    ) -> None:
        """Checks that all ids are below `size`, and that no two tokens share one.

        `ids` are those in the vocabulary's `file`, and `more` those of other tokens. `first` has the ids of padding,
        BOS, EOS and unknown token, by the setting or token that defines them.
        """
        names, before = ids | more, dict[int, str]()
        for name, id in (names | first).items():
            if type(id) is not int or not 0 <= id < size:
                source = file if name in ids or name in CONTROL_TOKENS else self.settings_file
                raise BadInput(f"{source}: {name}: expected an id below vocab_size={size}, got {id!r}")
        for name, id in names.items():
            if before.setdefault(id, name) != name:
                expected = "expected an id for each token"
                raise BadInput(f"{self.folder}: {expected}, got {id!r} for {before[id]} and {name}")

    @functools.cached_property
    def added(self) -> dict[str, Added]:
        """Tokens that tokenizer_config.json, tokenizer.json and added_tokens.json list, if they exist."""
        special, tokens, file = set(self.listed), dict[str, Added](), self.read_optional("tokenizer.json")
        # Before a special token, a normalizer of `transformers` 4 strips whitespace, and one of 5 does not.
        strips = not file or "'Strip'" in str(file.get("normalizer"))
        for name in ("tokenizer_config.json", "tokenizer.json", "added_tokens.json"):
            values = self.read_optional(name)
            with reading(self.folder / name, "the added tokens of a tokenizer"):
                listed, decoder = values.get("added_tokens") or [], values.get("added_tokens_decoder") or {}
                if name == "added_tokens.json":
                    listed = [{"content": token, "id": id, "special": token in special} for token, id in values.items()]
                    decoder = {}
                are_collections = isinstance(listed, list) and isinstance(decoder, dict)
                if not are_collections or not all(isinstance(entry, dict) for entry in (*listed, *decoder.values())):
                    raise ValueError("expected a list or an object of objects, one for each token")
                for entry in [*listed, *({**entry, "id": int(id)} for id, entry in decoder.items())]:
                    token, id = entry["content"], entry["id"]
                    if type(token) is not str or type(id) is not int:
                        raise ValueError(f"expected a name and an id, got {token!r} and {id!r}"[:200])
                    is_special, single_word = (entry.get(flag) is True for flag in ("special", "single_word"))
                    spaced = not entry.get("lstrip") and (not strips or entry.get("normalized", not is_special))
                    before = tokens.setdefault(token, Added(id, is_special, single_word, bool(spaced)))
                    if before.id != id:
                        expected = "expected one id in all files of a tokenizer"
                        raise BadInput(f"{token}: {expected}, got {before.id} and {id}")
        return tokens

    def added_ids(self, file: Path, ids: Mapping[str, Any]) -> dict[str, int]:
        """Returns the ids of tokens that were added to the vocabulary in `file`, whose contents are `ids`."""
        for name, token in self.added.items():
            if self.shared and (id := ids.get(name, token.id)) != token.id:
                raise BadInput(f"{self.folder}: {name}: expected the id {id} of {file.name}, got {token.id}")
            if not self.shared and name not in ids:
                raise BadInput(f"{self.folder}: added tokens: expected those of {file.name}, got {name!r}")
        return {name: token.id for name, token in self.added.items() if name not in ids}

    def matched(self, names: Container[str], controls: Iterable[str]) -> list[str]:
        """Returns the added tokens that texts may contain, of the tokens with an id (`names`).

        Those in `controls` are control tokens or languages. Those with a role, such as "mask_token", are as well.
        """
        settings = self.read_optional("special_tokens_map.json") | self.read_optional("tokenizer_config.json")
        roles = [settings.get(f"{role}_token") for role in ROLES]
        others = {*controls, "", *(role.get("content") if isinstance(role, dict) else str(role) for role in roles)}
        if lost := [token for token in self.listed if token not in names and token not in others]:
            raise BadInput(f"{self.folder}: expected a file that has the id of the token {lost[0]!r}, found none")
        tokens = [token for token in self.added if token not in others]
        if words := [token for token in tokens if self.added[token].single_word]:
            expected = "expected added tokens that are matched anywhere in a text, got one with single_word"
            raise BadInput(f"{self.folder}: {expected}: {words[0]!r}")
        return tokens

    @property
    def listed(self) -> list[str]:
        """Special tokens that tokenizer_config.json lists, or else special_tokens_map.json."""
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            for name in ("additional_special_tokens", "extra_special_tokens"):
                tokens = self.read_optional(file).get(name)
                if isinstance(tokens, list) and tokens:
                    tokens = [token.get("content") if isinstance(token, dict) else token for token in tokens]
                    return [token for token in tokens if isinstance(token, str)]
        return []


def check_settings(settings: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> None:
    """Checks settings. One that is missing has the first of its allowed values, except for the model's type."""
    for name, values in allowed.items():
        if settings.get(name, None if name == "model_type" else values[0]) not in values:
            raise BadInput(f"{name}: expected {' or '.join(map(repr, values))}, got {settings.get(name)!r}")


def unused(name: str, names: Mapping[str, Any]) -> str:
    """Returns a name for a token that only we have: this one, in brackets if it is taken."""
    while name in names:
        name = f"<{name}>"
    return name


def settings_of(
    translator: TensorTranslator, config: dict[str, Any], search: dict[str, Any], tokens: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Returns the settings of a checkpoint by file: those that all families have, and those of one."""
    model: Any = translator.model
    longest = translator.max_source_length + translator.extra_length
    # Lengths there also count BOS, or EOS, and the language. The penalty there is n^length_penalty.
    special = 1 + translator.tokenizer.num_language_tokens
    of_layers = {
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
        of_layers |= {f"{side}_{name}": value for name, value in (sizes | {"layerdrop": 0.0}).items()}
    of_search = {
        "num_beams": translator.beam_size,
        "length_penalty": translator.length_penalty,
        "max_length": min(longest, translator.export_options.get("max_length", longest)) + special,
    }
    return {
        "config.json": of_layers | config,
        "generation_config.json": of_search | search,
        "tokenizer_config.json": tokens | {"model_max_length": translator.max_source_length + special},
    }
