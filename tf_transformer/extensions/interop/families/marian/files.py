"""A MarianMT checkpoint as Hugging Face's `transformers` writes it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_transformer.config import ACTIVATIONS, BadInput, TransformerConfig
from tf_transformer.extensions.interop.families.checkpoint import SYMBOLS, Checkpoint, Vocabulary, unused
from tf_transformer.extensions.interop.families.hub import readme_of
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.extensions.interop.families.marian.tokenizer import (
    SOURCE,
    SOURCE_VOCABULARY,
    TARGET,
    MarianTokenizer,
)
from tf_transformer.extensions.interop.families.pieces import VOCABULARY

DEFAULTS = {
    "activation_function": "gelu",
    "attention_dropout": 0.0,
    "scale_embedding": False,
    "vocab_size": 58101,
    "pad_token_id": 58100,
    "share_encoder_decoder_embeddings": True,
}
ALLOWED = {
    "model_type": ("marian",),
    "activation_function": ACTIVATIONS,
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "add_final_layer_norm": (False,),
    "static_position_embeddings": (True,),
    "tie_word_embeddings": (True,),
}

ALIGNED = re.compile(rb"^\W*model:\W*transformer(-\w+)?-align\b", re.MULTILINE)  # of OPUS-MT's README.md


class MarianCheckpoint(Checkpoint):
    """A folder with config.json, vocab.json, source.spm, target.spm and one of the files of `hub.WEIGHTS`."""

    config_kind, model_kind, tokenizer_kind = MarianConfig, MarianTransformer, MarianTokenizer
    defaults, allowed = DEFAULTS, ALLOWED

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether source and target share one matrix of embeddings, and so one vocabulary."""
        return self.settings["share_encoder_decoder_embeddings"]

    @property
    def target_size(self) -> str:
        """The setting of how many symbols targets have."""
        return "decoder_vocab_size" if not self.shared and self.settings.get("decoder_vocab_size") else "vocab_size"

    def config(self, **more: Any) -> TransformerConfig:
        source_size = None if self.shared else self.settings["vocab_size"]
        sizes = {"vocab_size": self.settings[self.target_size], "source_vocab_size": source_size}
        return super().config(**sizes, alignment_heads=1 if ALIGNED.search(readme_of(self.folder)) else None)

    def vocabulary(self, side: str) -> Vocabulary:
        settings, (file, ids) = self.settings, self.ids(side)
        size, more = self.size("vocab_size" if side == "source" else self.target_size), self.symbols(file, ids)
        symbols = ids | more
        first = {name: symbols.get(name) for name in SYMBOLS}
        if side == "source":  # the settings are the target's
            first["<s>"] = first["<pad>"]
        else:
            pad, end = settings["pad_token_id"], first["</s>"]
            first = {
                "pad_token_id": pad,
                "decoder_start_token_id": settings.get("decoder_start_token_id", pad),
                "eos_token_id" if "eos_token_id" in settings else "</s>": settings.get("eos_token_id", end),
                "<unk>": first["<unk>"],
            }
        rows = self._rows(file, ids, more, first, size, own=0)
        names = {id: piece for piece, id in symbols.items()}
        pieces = [names.get(id, "") for id in rows]
        pieces[1] = unused("<s>", symbols)
        codes = [symbol for symbol in self.added if re.fullmatch(">>.*<<", symbol)]
        added = self.matched(symbols, [*SYMBOLS, *codes, *(names[id] for id in rows[:4] if id in names)])
        return Vocabulary(pieces, rows, added=added)

    def ids(self, side: str) -> tuple[Path, dict[str, Any]]:
        """The file of a side's vocabulary, and its ids by piece."""
        name = "vocab.json"
        if side == "target" and not self.shared:
            settings = self.said("tokenizer_config.json")
            if settings.get("separate_vocabs", (self.folder / "target_vocab.json").is_file()):
                name = "target_vocab.json"
        return self.folder / name, self.read(name)

    def symbols(self, file: Path, ids: Mapping[str, Any]) -> dict[str, int]:
        """The ids of symbols that were added to a vocabulary.

        Args:
            file: of the vocabulary.
            ids: its contents.

        Raises:
            BadInput: an id differs from the vocabulary's; or source and target have two, and a symbol is in neither.
        """
        found = dict[str, int]()
        for symbol, token in self.added.items():
            if symbol in ids:
                if self.shared and ids[symbol] != token.id:
                    one = f"expected the id {ids[symbol]} of {file.name}"
                    raise BadInput(f"{self.folder}: {symbol}: {one}, got {token.id}")
            elif self.shared:
                found[symbol] = token.id
            else:
                raise BadInput(f"{self.folder}: added tokens: expected those of {file.name}, got {symbol!r}")
        return found

    def archive(self) -> dict[str, Any]:
        contents: dict[str, Any] = {name: self.sentencepiece(name) for name in (SOURCE, TARGET)}
        vocabularies = {VOCABULARY: self.target.pieces}
        return contents | vocabularies | ({} if self.shared else {SOURCE_VOCABULARY: self.source.pieces})
