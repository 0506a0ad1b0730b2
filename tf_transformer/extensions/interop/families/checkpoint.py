"""A pretrained checkpoint as Hugging Face's `transformers` writes it, whatever its family."""

import dataclasses
import functools
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tf_transformer.config import BadInput, TransformerConfig
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.extensions.interop.families.hub import WEIGHTS
from tf_transformer.extensions.interop.families.pieces import ADDED, PieceTokenizer, archive_of
from tf_transformer.extensions.interop.families.weights import NO_SHARE, Assignment, Readers, check_rows, read_weights
from tf_transformer.models.families import Pretrained
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.piece_engine import engine_of
from tf_transformer.tokenizers.tokenizer import EOS_ID
from tf_transformer.utils.files import user_path
from tf_transformer.utils.reading import check_file, made_of, read_bytes, read_json, reading

MOST_SYMBOLS = 2**24  # of a vocabulary without weights
SYMBOLS = ("<pad>", "<s>", "</s>", "<unk>")  # which a vocabulary has itself
TABLES = [f"model.{place}.weight" for place in ("shared", "encoder.embed_tokens", "decoder.embed_tokens")]
FIELDS = {  # of a configuration, and the settings that they come from
    "num_layers": "encoder_layers",
    "d_model": "d_model",
    "d_ff": "encoder_ffn_dim",
    "num_heads": "encoder_attention_heads",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "vocab_size": "vocab_size",
    "num_decoder_layers": "decoder_layers",
    "num_decoder_heads": "decoder_attention_heads",
    "decoder_d_ff": "decoder_ffn_dim",
    "activation": "activation_function",
    "scale_embedding": "scale_embedding",
}
DEFAULTS: dict[str, Any] = {"d_model": 1024, "dropout": 0.1} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 12), ("ffn_dim", 4096), ("attention_heads", 16))
}


FLAGS = ("special", "single_word")  # of an added token
PLAIN = ("lstrip", "normalized", "rstrip", "single_word")  # what the added tokens that are written here are not
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Vocabulary(NamedTuple):
    """A checkpoint's vocabulary in the order of our ids: padding, start, end, unknown, then the checkpoint's other ids
    in their order."""

    pieces: list[str]  # by our id; "" where the checkpoint's vocabulary has none
    rows: list[int]  # by our id, the checkpoint's own
    languages: Mapping[str, int] = {}  # our ids, by code
    silent: Sequence[int] = ()  # our ids without a text
    added: Sequence[str] = ()  # pieces that are matched in a text first


class Added(NamedTuple):
    """A symbol that a tokenizer's files number themselves, beside its vocabulary or once more."""

    id: int
    is_special: bool  # no output's text contains it
    single_word: bool = False  # matched only between characters that are not of a word


class Checkpoint:
    """A pretrained checkpoint in a folder. Each of its files is read once, when it is first asked for.

    A family derives from it, and says what its vocabulary and its tokenizer's files are. Whatever is wrong with a file
    is one line of `BadInput`.

    Attributes:
        config_kind, model_kind, tokenizer_kind: classes.
        defaults: settings that its files leave out, beside `DEFAULTS`: they have only what differs.
        allowed: settings that are not read, and their values here.
        shared: whether source and target have one vocabulary.
        folder: its path.
    """

    config_kind: type[TransformerConfig]
    model_kind: type[Transformer]
    tokenizer_kind: type[PieceTokenizer]
    defaults: Mapping[str, Any]
    allowed: Mapping[str, Sequence[Any]]
    shared = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = user_path(folder)
        self.kind = self.tokenizer_kind.kind  # for messages
        self._contents: dict[str, Any] = {}

    def load(self) -> Pretrained:
        """All that it holds."""
        model, tokenizer, options = self.model(), self.tokenizer(), self.options()
        max_length = options.pop("max_length", None)
        return Pretrained(model, tokenizer, options, max_length)

    # Files.

    def read(self, name: str, parse: Callable[[Path], Any] = read_json, named_by: str = "") -> Any:
        """What a file holds.

        Args:
            name: the file's.
            parse: reads it.
            named_by: the file that names it, for messages.
        """
        if name not in self._contents:
            if not (self.folder / name).is_file():
                names = f", which {named_by} names," * bool(named_by)
                raise BadInput(f"expected a checkpoint of {self.kind}, found no {name}{names} in {self.folder}")
            self._contents[name] = parse(self.folder / name)
        return self._contents[name]

    def said(self, name: str) -> dict[str, Any]:
        """The object in a JSON file; {} if there is no such file."""
        return self.read(name) if (self.folder / name).is_file() else {}

    def sentencepiece(self, name: str) -> bytes:
        """A SentencePiece model, serialized."""
        model = self.read(name, read_bytes)
        with reading(self.folder / name, "a SentencePiece model"):
            engine_of(model)
        return model

    @functools.cached_property
    def settings_file(self) -> Path:
        """The file of the settings, for messages."""
        return self.folder / "config.json"

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The settings, by their names in config.json."""
        return {**DEFAULTS, **self.defaults, **self.read("config.json")}

    @functools.cached_property
    def stored(self) -> int:
        """The bytes of the files of weights."""
        patterns = ("*.safetensors", "*.h5", "*.bin", "*.npz")
        files = [file for pattern in patterns for file in self.folder.glob(pattern)]
        return sum(check_file(file).stat().st_size for file in files)

    def weights(self) -> tuple[Path, Readers]:
        """The file of the weights, the first of those that are there, and the weights by PyTorch's names."""
        for name in WEIGHTS:
            if (self.folder / name).is_file():
                return self.folder / name, self.read(name, functools.partial(read_weights, kind=self.kind))
        raise BadInput(f"expected a checkpoint of {self.kind}, found none of {', '.join(WEIGHTS)} in {self.folder}")

    # What is made of them.

    def config(self, **more: Any) -> TransformerConfig:
        """The configuration of the model, without our own symbols; `more` are further fields."""
        check_settings(self.settings, self.allowed)
        return made_of(self.config_kind, {field: self.settings[name] for field, name in FIELDS.items()} | more)

    def vocabulary(self, side: str) -> Vocabulary:
        """The vocabulary of "source" or of "target"; the latter is that of both if it is `shared`."""
        raise NotImplementedError

    def archive(self) -> dict[str, Any]:
        """The contents of the tokenizer's archive, as `archive_of` takes them."""
        raise NotImplementedError

    @functools.cached_property
    def target(self) -> Vocabulary:
        """The vocabulary of targets."""
        return self.vocabulary("target")

    @functools.cached_property
    def source(self) -> Vocabulary:
        """The vocabulary of sources."""
        return self.target if self.shared else self.vocabulary("source")

    def tokenizer(self) -> PieceTokenizer:
        """The tokenizer."""
        with reading(self.folder, f"the tokenizer of {self.kind}"):
            added = {ADDED: self.target.added} if self.target.added else {}
            return self.tokenizer_kind(archive_of(self.archive() | added))

    def model(self) -> Transformer:
        """The model, with its weights in our order of ids."""
        file, tensors = self.weights()
        with reading(self.settings_file, f"the settings of {self.kind}"):
            config = self.config()
            config.check_stored(self.stored)
        sizes: dict[str, Any] = {"vocab_size": len(self.target.rows)}
        if not self.shared:
            sizes["source_vocab_size"] = len(self.source.rows)
        model = self.model_kind(dataclasses.replace(config, **sizes))
        model.build()
        with reading(file, f"the weights of {self.kind}"):
            weights = Assignment(tensors)
            self.assign(weights, model)
            weights.check_none_left(self.kind)
        return model

    def assign(self, weights: Assignment, model: Any) -> None:
        """Assign all weights that the model has."""
        weights.stacks(model)
        names, rows = TABLES, self.target.rows  # one matrix: the file has it under one of these names, or several
        if not self.shared:
            weights.table(model.source_embedding.embeddings, names[1:2], self.source.rows)
            names = names[2:]
        weights.table(model.embedding.embeddings, [*names, "lm_head.weight"], rows)
        bias = np.zeros(len(rows), "float32")
        if "final_logits_bias" in weights.left:
            biases = weights.take("final_logits_bias").ravel()
            check_rows(biases, rows)
            bias = biases[rows]
        bias[:EOS_ID] = NO_SHARE  # of padding and start symbol
        model.embedding.logits_bias.assign(bias)

    def options(self) -> dict[str, Any]:
        """The options of the search that mean the same here: beam_size, at most a request's, and max_length, which
        there counts what begins a target, too."""
        settings = self.settings | self.said("generation_config.json")
        first = 1 + self.tokenizer_kind.codes
        found = {"beam_size": (settings.get("num_beams"), 0), "max_length": (settings.get("max_length"), first)}
        options = {name: value - less for name, (value, less) in found.items() if type(value) is int and value > less}
        if "beam_size" in options:
            options["beam_size"] = min(options["beam_size"], SEARCH_OPTIONS["beam_size"].highest)
        return options

    # For the families.

    def size(self, name: str) -> int:
        """The setting of how many symbols a vocabulary has; each has a row in the weights, if their files are there."""
        size, most = self.settings[name], self.stored or MOST_SYMBOLS
        if type(size) is not int or not 0 < size <= most:
            got = str(size)[:99]
            raise BadInput(f"{self.settings_file}: {name}: expected a number up to {most:,}, got {got!r}")
        return size

    def _rows(
        self, file: Path, ids: dict[str, Any], more: dict[str, Any], first: dict[str, Any], size: int, own: int
    ) -> list[int]:
        """The checkpoint's ids by ours.

        Args:
            file: of the vocabulary.
            ids: by symbol, in the file.
            more: further ones, by symbol.
            first: the ids of padding, start, end and unknown symbol, by what says them.
            size: of the vocabulary.
            own: how many of `first` are symbols of the checkpoint beside ours.

        Raises:
            BadInput: an id does not lie in the vocabulary, or two symbols have one.
        """
        names, before = ids | more, dict[int, str]()
        for name, id in (names | first).items():
            if type(id) is not int or not 0 <= id < size:
                where = file if name in ids or name in SYMBOLS else self.settings_file
                raise BadInput(f"{where}: {name}: expected an id below vocab_size={size}, got {id!r}")
        for name, id in names.items():
            if before.setdefault(id, name) != name:
                wanted = "expected an id for each symbol"
                raise BadInput(f"{self.folder}: {wanted}, got {id!r} for {before[id]} and {name}")
        controls = list(first.values())
        placed = {*controls[own:]}
        return controls + [id for id in range(size) if id not in placed]

    @functools.cached_property
    def added(self) -> dict[str, Added]:
        """The symbols that a tokenizer's files number, by name: of tokenizer_config.json, tokenizer.json and
        added_tokens.json, those that are there."""
        special, found = set(self.listed), dict[str, Added]()
        for name in ("tokenizer_config.json", "tokenizer.json", "added_tokens.json"):
            with reading(self.folder / name, "the added tokens of a tokenizer"):
                values = self.said(name)
                listed, decoder = values.get("added_tokens") or [], values.get("added_tokens_decoder") or {}
                if name == "added_tokens.json":
                    entries = [(token, id, token in special, False) for token, id in values.items()]
                elif not (isinstance(listed, list) and isinstance(decoder, dict)):
                    raise ValueError("expected a list or an object of symbols")
                elif not all(isinstance(each, dict) for each in (*listed, *decoder.values())):
                    raise ValueError("expected an object for each symbol")
                elif name == "tokenizer.json":
                    entries = [(each["content"], each["id"], *map(each.get, FLAGS)) for each in listed]
                else:
                    entries = [(each["content"], int(id), *map(each.get, FLAGS)) for id, each in decoder.items()]
                for token, id, is_special, single_word in entries:
                    if type(token) is not str or type(id) is not int:
                        raise ValueError(f"expected a name and an id, got {token!r} and {id!r}"[:200])
                    before = found.setdefault(token, Added(id, is_special is True, single_word is True))
                    if before.id != id:
                        one = "expected one id in all files of a tokenizer"
                        raise BadInput(f"{token}: {one}, got {before.id} and {id}")
        return found

    def matched(self, names: Container[str], controls: Iterable[str]) -> list[str]:
        """Returns the added tokens that texts may contain.

        Args:
            names: tokens that have an id.
            controls: added tokens that are control symbols or languages; those with a role, such as "mask_token", are
                control symbols also.

        Raises:
            BadInput: If one has no id, or is matched only as a word.
        """
        settings = self.said("special_tokens_map.json") | self.said("tokenizer_config.json")
        roles = [settings.get(f"{role}_token") for role in ROLES]
        others = {*controls, "", *(role.get("content") if isinstance(role, dict) else str(role) for role in roles)}
        if lost := [token for token in self.listed if token not in names and token not in others]:
            raise BadInput(f"{self.folder}: expected a file that has the id of the token {lost[0]!r}, found none")
        found = [token for token in self.added if token not in others]
        if words := [token for token in found if self.added[token].single_word]:
            wanted = "expected added tokens that are matched anywhere in a text, got one with single_word"
            raise BadInput(f"{self.folder}: {wanted}: {words[0]!r}")
        return found

    @property
    def listed(self) -> list[str]:
        """The control symbols that tokenizer_config.json lists, or else special_tokens_map.json; [] if neither does."""
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            for name in ("additional_special_tokens", "extra_special_tokens"):
                symbols = self.said(file).get(name)
                if isinstance(symbols, list) and symbols:
                    symbols = [each.get("content") if isinstance(each, dict) else each for each in symbols]
                    return [each for each in symbols if isinstance(each, str)]
        return []


def check_settings(settings: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> None:
    """Check settings; one that is missing has the first of its allowed values, except for the model's type.

    Raises:
        BadInput: one has another value.
    """
    for name, values in allowed.items():
        if settings.get(name, None if name == "model_type" else values[0]) not in values:
            raise BadInput(f"{name}: expected {' or '.join(map(repr, values))}, got {settings.get(name)!r}")


def unused(name: str, names: Mapping[str, Any]) -> str:
    """A name for a symbol that is ours alone: this one, or with brackets."""
    while name in names:
        name = f"<{name}>"
    return name
