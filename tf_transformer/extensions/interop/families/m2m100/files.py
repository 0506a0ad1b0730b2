"""An M2M100 or NLLB-200 checkpoint as Hugging Face's `transformers` writes it."""

import itertools
import re
from pathlib import Path
from typing import Any

from tf_transformer.config import ACTIVATIONS, BadInput, TransformerConfig
from tf_transformer.extensions.interop.families.checkpoint import SYMBOLS, Checkpoint, Vocabulary, unused
from tf_transformer.extensions.interop.families.m2m100.languages import BY_NAME, NLLB, languages_among
from tf_transformer.extensions.interop.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.extensions.interop.families.m2m100.tokenizer import IDS, PIECES, M2M100Tokenizer
from tf_transformer.extensions.interop.families.pieces import VOCABULARY
from tf_transformer.tokenizers.piece_engine import engine_of
from tf_transformer.utils.reading import check_kinds

CONTROL_IDS = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}  # with their defaults
DEFAULTS = {"activation_function": "relu", "attention_dropout": 0.1, "scale_embedding": True, "vocab_size": 128112}
DEFAULTS |= CONTROL_IDS
ALLOWED = {"model_type": ("m2m_100",), "activation_function": ACTIVATIONS, "tie_word_embeddings": (True,)}
# What the files of these say is read here; other tokenizers of such models give their languages other places.
TOKENIZERS = (None, "M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast", "TokenizersBackend")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first ids of NLLB's vocabulary


class M2M100Checkpoint(Checkpoint):
    """A folder with config.json, sentencepiece.bpe.model, if it is not NLLB's vocab.json, and one of the files of
    `hub.WEIGHTS`."""

    config_kind, model_kind, tokenizer_kind = M2M100Config, M2M100Transformer, M2M100Tokenizer
    defaults, allowed = DEFAULTS, ALLOWED

    def config(self, **more: Any) -> TransformerConfig:
        check_kinds(self.settings, {"pad_token_id": int})
        return super().config(first_position=self.settings["pad_token_id"] + 1)

    def vocabulary(self, side: str) -> Vocabulary:
        """The one vocabulary.

        M2M100 numbers its pieces in vocab.json; without this file they have NLLB's order: four control symbols, the
        pieces of sentencepiece.bpe.model, the languages, the mask. The languages come after all pieces. The
        tokenizer's files may give languages other ids, and further languages and added tokens theirs.

        Raises:
            BadInput: a file is missing or holds something else; or the files leave an id open.
        """
        size, (file, ids, symbols) = self.size("vocab_size"), self._numbered()
        more = {symbol: len(ids) + place for place, symbol in enumerate(symbols.values())}
        more |= {symbol: token.id for symbol, token in self.added.items() if symbol not in ids}
        first = {name: self.settings[name] for name in CONTROL_IDS} | {"<unk>": ids.get("<unk>")}
        rows, names = self._rows(file, ids, more, first, size, own=2), ids | more
        by_id, number = {id: piece for piece, id in names.items()}, itertools.count()
        start = self.settings["decoder_start_token_id"]
        if start not in {*ids.values(), *(names[symbol] for symbol in symbols.values())}:  # ours, and nothing else
            rows = [id for place, id in enumerate(rows) if place < len(SYMBOLS) or id != start]
        pieces = [unused(name, names) for name in SYMBOLS[:2]]
        pieces += [by_id[id] if id in by_id else f"madeupword{next(number)}" for id in rows[2:]]  # fairseq's names
        ours = {id: place for place, id in enumerate(rows)}
        controls = [*SPECIAL, "<mask>", *symbols.values(), *(name for name, id in names.items() if id == start)]
        added = self.matched(names, controls)
        texts = {id for piece, id in ids.items() if piece not in SPECIAL}
        texts |= {names[token] for token in added if not self.added[token].is_special}
        silent = [place for place, id in enumerate(rows) if id not in texts]
        languages = {code: ours[names[symbol]] for code, symbol in symbols.items() if code}
        return Vocabulary(pieces, rows, languages, silent, added)

    def _numbered(self) -> tuple[Path, dict[str, Any], dict[str, str]]:
        """The file of the pieces, their ids, and by code the symbols of languages and, as "", the mask. These have the
        next ids in this order, if `added` does not say others."""
        said, file, added = self.said("tokenizer_config.json"), self.folder / "tokenizer_config.json", self.added
        check_kinds(said, {"language_codes": str})
        if (kind := said.get("tokenizer_class")) not in TOKENIZERS:
            known = ", ".join(map(str, TOKENIZERS[1:]))
            raise BadInput(f"{file}: tokenizer_class: expected one of {known}; got {str(kind)[:99]!r}")
        if kind == "M2M100Tokenizer" or (self.folder / "vocab.json").is_file():
            if (name := said.get("language_codes", "m2m100")) not in BY_NAME:
                raise BadInput(f"{file}: language_codes: expected one of {', '.join(BY_NAME)}; got {str(name)[:99]!r}")
            file, ids = self.folder / "vocab.json", self.read("vocab.json")
            stated = {symbol[2:-2]: symbol for symbol in added if re.fullmatch("__[a-z]{2,3}([_-]\\w+)?__", symbol)}
            symbols = {code: f"__{code}__" for code in BY_NAME[name].split()} | stated
        else:
            if legacy := said.get("legacy_behaviour"):
                raise BadInput(
                    f"{file}: legacy_behaviour: expected false, with the language first in a text; got {legacy!r}"
                )
            file, engine = self.folder / PIECES, engine_of(self.sentencepiece(PIECES))
            pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size())]  # after its own control symbols
            ids = {piece: id for id, piece in enumerate([*SPECIAL, *pieces])}
            stated = {code: code for code in languages_among([*added])}
            symbols = self._languages([*stated]) | stated
        for symbol, token in added.items():
            if ids.get(symbol, token.id) != token.id:
                one = f"expected the id {ids[symbol]} of {file.name}"
                raise BadInput(f"{self.folder}: {symbol}: {one}, got {token.id}")
        return file, ids, symbols

    def _languages(self, stated: list[str]) -> dict[str, str]:
        """NLLB's languages whose ids follow the pieces, in this order, and the mask; {} if the tokenizer's files have
        ids.

        Args:
            stated: the codes that the files number: none, further ones, or all.

        Raises:
            BadInput: the files list a language without an id that is not NLLB's.
        """
        own, listed = NLLB.split(), languages_among(self.listed)
        if unknown := [code for code in listed if code not in {*own, *stated}]:
            wanted = f"expected a file that has the id of the language {unknown[0]}"
            raise BadInput(f"{self.folder}: {wanted}, found none")
        if {*own} & {*stated}:
            return {}
        return {code: code for code in (listed if listed and not stated else own)} | {"": "<mask>"}

    def archive(self) -> dict[str, Any]:
        pieces, _, languages, silent, _ = self.target
        said: dict[str, Any] = {"ids": languages, "silent": silent}
        for name, setting in (("source_language", "src_lang"), ("target_language", "tgt_lang")):
            code = self.said("tokenizer_config.json").get(setting)
            said[name] = code if isinstance(code, str) and code else None
        return {PIECES: self.sentencepiece(PIECES), VOCABULARY: pieces, IDS: said}
