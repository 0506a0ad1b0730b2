"""MarianMT checkpoints as Hugging Face's `transformers` writes them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_transformer.config import ACTIVATIONS, BadInput, TransformerConfig
from tf_transformer.extensions.interop.families.checkpoint import CONTROL_TOKENS, Checkpoint, Vocabulary, unused
from tf_transformer.extensions.interop.families.hub import readme_of
from tf_transformer.extensions.interop.families.marian import tokenizer
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
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
ALIGNED = re.compile(rb"^\W*model:\W*transformer(-\w+)?-align\b", re.MULTILINE)  # a line of OPUS-MT's README.md


class MarianCheckpoint(Checkpoint):
    """A directory with config.json, vocab.json, source.spm, target.spm and one of the files of `hub.WEIGHTS`."""

    config_kind, model_kind, tokenizer_kind = MarianConfig, MarianTransformer, tokenizer.MarianTokenizer
    defaults, allowed = DEFAULTS, ALLOWED

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
        return super().config(**sizes, alignment_heads=1 if ALIGNED.search(readme_of(self.folder)) else None)

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
        rows = self._rows(file, ids, added_ids, first, size, extra=0)
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
            settings = self.said("tokenizer_config.json")
            if settings.get("separate_vocabs", (self.folder / "target_vocab.json").is_file()):
                name = "target_vocab.json"
        return self.folder / name, self.read(name)

    def added_ids(self, file: Path, ids: Mapping[str, Any]) -> dict[str, int]:
        """Returns the ids of tokens that were added to the vocabulary in `file`, whose contents are `ids`."""
        new_ids = dict[str, int]()
        for name, token in self.added.items():
            if name in ids:
                if self.shared and (id := ids[name]) != token.id:
                    raise BadInput(f"{self.folder}: {name}: expected the id {id} of {file.name}, got {token.id}")
            elif self.shared:
                new_ids[name] = token.id
            else:
                raise BadInput(f"{self.folder}: added tokens: expected those of {file.name}, got {name!r}")
        return new_ids

    def archive(self) -> dict[str, Any]:
        contents: dict[str, Any] = {name: self.sentencepiece(name) for name in (tokenizer.SOURCE, tokenizer.TARGET)}
        contents[VOCABULARY] = self.target.pieces
        return contents if self.shared else contents | {tokenizer.SOURCE_VOCABULARY: self.source.pieces}
