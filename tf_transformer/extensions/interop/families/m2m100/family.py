"""Reads and writes checkpoints of M2M100 and NLLB-200."""

import itertools
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tf_transformer.config import ACTIVATIONS, BadInput, TransformerConfig
from tf_transformer.decoding.tensor_translator import TensorTranslator
from tf_transformer.extensions.interop.families.checkpoint import (
    CONTROL_TOKENS,
    PLAIN,
    TABLES,
    Checkpoint,
    Vocabulary,
    settings_of,
    unused,
)
from tf_transformer.extensions.interop.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.extensions.interop.families.m2m100.tokenizer import IDS, PIECES, M2M100Tokenizer
from tf_transformer.extensions.interop.families.pieces import VOCABULARY
from tf_transformer.extensions.interop.families.weights import float32, tensors_of
from tf_transformer.models.families import Contents, Family
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID, UNKNOWN_ID, engine_of
from tf_transformer.utils.reading import check_kinds, read_bytes

CONTROL_IDS = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}  # defaults
DEFAULTS = {"activation_function": "relu", "attention_dropout": 0.1, "scale_embedding": True, "vocab_size": 128112}
DEFAULTS |= CONTROL_IDS
ALLOWED = {"model_type": ("m2m_100",), "activation_function": ACTIVATIONS, "tie_word_embeddings": (True,)}
# Other tokenizers of such models give their languages other ids.
TOKENIZERS = (None, "M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast", "TokenizersBackend")
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first ids of NLLB's vocabulary
MADE_UP = re.compile("madeupword[0-9]+")  # our name for an id without one
LANGUAGE = re.compile("[a-z]{3}_[A-Z][a-z]{3}")  # NLLB's codes
# The languages of published checkpoints, in the order of their ids. The files of many do not list them.
M2M100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy id ig
ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so
sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu
"""
WMT21 = "en ha is ja cs ru zh de"
NLLB = """
ace_Arab ace_Latn acm_Arab acq_Arab aeb_Arab afr_Latn ajp_Arab aka_Latn amh_Ethi apc_Arab arb_Arab ars_Arab ary_Arab
arz_Arab asm_Beng ast_Latn awa_Deva ayr_Latn azb_Arab azj_Latn bak_Cyrl bam_Latn ban_Latn bel_Cyrl bem_Latn ben_Beng
bho_Deva bjn_Arab bjn_Latn bod_Tibt bos_Latn bug_Latn bul_Cyrl cat_Latn ceb_Latn ces_Latn cjk_Latn ckb_Arab crh_Latn
cym_Latn dan_Latn deu_Latn dik_Latn dyu_Latn dzo_Tibt ell_Grek eng_Latn epo_Latn est_Latn eus_Latn ewe_Latn fao_Latn
pes_Arab fij_Latn fin_Latn fon_Latn fra_Latn fur_Latn fuv_Latn gla_Latn gle_Latn glg_Latn grn_Latn guj_Gujr hat_Latn
hau_Latn heb_Hebr hin_Deva hne_Deva hrv_Latn hun_Latn hye_Armn ibo_Latn ilo_Latn ind_Latn isl_Latn ita_Latn jav_Latn
jpn_Jpan kab_Latn kac_Latn kam_Latn kan_Knda kas_Arab kas_Deva kat_Geor knc_Arab knc_Latn kaz_Cyrl kbp_Latn kea_Latn
khm_Khmr kik_Latn kin_Latn kir_Cyrl kmb_Latn kon_Latn kor_Hang kmr_Latn lao_Laoo lvs_Latn lij_Latn lim_Latn lin_Latn
lit_Latn lmo_Latn ltg_Latn ltz_Latn lua_Latn lug_Latn luo_Latn lus_Latn mag_Deva mai_Deva mal_Mlym mar_Deva min_Latn
mkd_Cyrl plt_Latn mlt_Latn mni_Beng khk_Cyrl mos_Latn mri_Latn zsm_Latn mya_Mymr nld_Latn nno_Latn nob_Latn npi_Deva
nso_Latn nus_Latn nya_Latn oci_Latn gaz_Latn ory_Orya pag_Latn pan_Guru pap_Latn pol_Latn por_Latn prs_Arab pbt_Arab
quy_Latn ron_Latn run_Latn rus_Cyrl sag_Latn san_Deva sat_Beng scn_Latn shn_Mymr sin_Sinh slk_Latn slv_Latn smo_Latn
sna_Latn snd_Arab som_Latn sot_Latn spa_Latn als_Latn srd_Latn srp_Cyrl ssw_Latn sun_Latn swe_Latn swh_Latn szl_Latn
tam_Taml tat_Cyrl tel_Telu tgk_Cyrl tgl_Latn tha_Thai tir_Ethi taq_Latn taq_Tfng tpi_Latn tsn_Latn tso_Latn tuk_Latn
tum_Latn tur_Latn twi_Latn tzm_Tfng uig_Arab ukr_Cyrl umb_Latn urd_Arab uzn_Latn vec_Latn vie_Latn war_Latn wol_Latn
xho_Latn ydd_Hebr yor_Latn yue_Hant zho_Hans zho_Hant zul_Latn
"""
BY_NAME = {"m2m100": M2M100, "wmt21": WMT21}  # keys are values of "language_codes" in tokenizer_config.json


class M2M100Checkpoint(Checkpoint):
    """A directory with config.json, sentencepiece.bpe.model, vocab.json unless it is NLLB's, and one of the files of
    `hub.WEIGHTS`."""

    config_kind, model_kind, tokenizer_kind = M2M100Config, M2M100Transformer, M2M100Tokenizer
    defaults, allowed = DEFAULTS, ALLOWED

    def config(self, **fields: Any) -> TransformerConfig:
        check_kinds(self.settings, {"pad_token_id": int})
        return super().config(first_position=self.settings["pad_token_id"] + 1)

    def vocabulary(self, side: str) -> Vocabulary:
        """Reads the vocabulary of both sides.

        M2M100 has the ids of its tokens in vocab.json. Without this file they have NLLB's order: four control tokens,
        the tokens of sentencepiece.bpe.model, the languages, the mask. Languages follow all other tokens. The
        tokenizer's files may set other ids, and add languages and tokens.
        """
        size, (file, ids, language_tokens) = self.size("vocab_size"), self._file_of_vocabulary()
        # Languages have the ids after the vocabulary's, unless a file states others.
        more = {token: len(ids) + i for i, token in enumerate(language_tokens.values())}
        more |= self.added_ids(file, ids)
        first = {name: self.settings[name] for name in CONTROL_IDS} | {"<unk>": ids.get("<unk>")}
        self.check_ids(file, ids, more, first, size)
        names, controls, start = ids | more, [*first.values()], self.settings["decoder_start_token_id"]
        # Padding is also an ordinary token, and so is the token that starts a target, unless it is no other token.
        ordinary = [id for id in range(size) if id not in controls[2:]]
        if start not in {*ids.values(), *(names[token] for token in language_tokens.values())}:
            ordinary = [id for id in ordinary if id != start]
        rows = controls + ordinary
        by_id, number = {id: piece for piece, id in names.items()}, itertools.count()
        # Our padding and BOS are not the checkpoint's, whose names must stay unique.
        pieces = [unused(name, names) for name in CONTROL_TOKENS[:2]]
        # fairseq has these names for unused ids.
        pieces += [by_id[id] if id in by_id else f"madeupword{next(number)}" for id in rows[2:]]
        ours = {id: i for i, id in enumerate(rows)}
        never = [*SPECIAL, "<mask>", *language_tokens.values(), *(name for name, id in names.items() if id == start)]
        added = self.matched(names, never)
        texts = {id for piece, id in ids.items() if piece not in SPECIAL}
        texts |= {names[token] for token in added if not self.added[token].is_special}
        silent = [i for i, id in enumerate(rows) if id not in texts]
        languages = {code: ours[names[token]] for code, token in language_tokens.items() if code}
        # M2M100's tokenizer is SentencePiece's own.
        spaced = {token: file.name == PIECES and self.added[token].is_spaced for token in added}
        return Vocabulary(pieces, rows, languages, silent, spaced)

    def _file_of_vocabulary(self) -> tuple[Path, dict[str, Any], dict[str, str]]:
        """Returns the file of the vocabulary, its ids, and by code the tokens of languages and, as "", the mask.

        The latter have the next ids in this order, unless `added` has others.
        """
        settings, file = self.read_optional("tokenizer_config.json"), self.folder / "tokenizer_config.json"
        check_kinds(settings, {"language_codes": str})
        if (kind := settings.get("tokenizer_class")) not in TOKENIZERS:
            supported = ", ".join(map(str, TOKENIZERS[1:]))
            raise BadInput(f"{file}: tokenizer_class: expected one of {supported}; got {str(kind)[:99]!r}")
        if kind == "M2M100Tokenizer" or (self.folder / "vocab.json").is_file():
            if (name := settings.get("language_codes", "m2m100")) not in BY_NAME:
                raise BadInput(f"{file}: language_codes: expected one of {', '.join(BY_NAME)}; got {str(name)[:99]!r}")
            file, ids = self.folder / "vocab.json", self.read("vocab.json")
            stated = [token for token in self.added if re.fullmatch("__[a-z]{2,3}([_-]\\w+)?__", token)]
            language_tokens = {code: f"__{code}__" for code in BY_NAME[name].split()}
            language_tokens |= {token[2:-2]: token for token in stated}
        else:
            if legacy := settings.get("legacy_behaviour"):
                raise BadInput(f"{file}: legacy_behaviour: expected false, with languages first, got {legacy!r}")
            file = self.folder / PIECES
            if not file.is_file():
                raise BadInput(
                    f"expected a checkpoint of {self.kind}, found no {file}. Copy it from the original model."
                )
            engine = engine_of(self.sentencepiece(PIECES))
            # SentencePiece's first three tokens are control tokens.
            pieces = [engine.id_to_piece(id) for id in range(3, engine.vocab_size())]
            ids = {piece: id for id, piece in enumerate([*SPECIAL, *pieces])}
            published = NLLB.split()
            stated, listed = ([*filter(LANGUAGE.fullmatch, tokens)] for tokens in (self.added, self.listed))
            if unknown := [code for code in listed if code not in {*published, *stated}]:
                expected = "expected a file that has the id of the language"
                raise BadInput(f"{self.folder}: {expected} {unknown[0]}, found none")
            language_tokens = {code: code for code in stated}
            # The files state ids of no language, of additional ones, or of all.
            if {*published}.isdisjoint(stated):
                order = listed if listed and not stated else published
                language_tokens = {code: code for code in order} | {"": "<mask>"} | language_tokens
        return file, ids, language_tokens

    def archive(self) -> dict[str, Any]:
        pieces, _, languages, silent, _ = self.target
        description: dict[str, Any] = {"ids": languages, "silent": silent}
        for name, setting in (("source_language", "src_lang"), ("target_language", "tgt_lang")):
            code = self.read_optional("tokenizer_config.json").get(setting)
            description[name] = code if isinstance(code, str) and code else None
        return {PIECES: self.sentencepiece(PIECES), VOCABULARY: pieces, IDS: description}


def write(translator: TensorTranslator) -> Contents:
    """Returns the contents of a checkpoint.

    Its targets start with EOS. If training has moved BOS's row of the embedding table away from EOS's, that row becomes
    an additional token, which no output may contain.
    """
    model: Any = translator.model
    tokenizer = translator.tokenizer
    if not isinstance(tokenizer, M2M100Tokenizer):
        raise BadInput(f"tokenizer: expected one of {M2M100Tokenizer.kind}, as its models have it, got {tokenizer!r}")
    pieces = tokenizer.tokens(range(tokenizer.vocab_size))
    # Our first ordinary tokens are the checkpoint's BOS and padding.
    rows = [FIRST_ID, FIRST_ID + 1, EOS_ID, UNKNOWN_ID, *range(FIRST_ID + 2, len(pieces))]
    new_ids = {id: row for row, id in enumerate(rows)}
    if tuple(pieces[id] for id in rows[: len(SPECIAL)]) != SPECIAL or model.config.first_position != 2:
        got = ", ".join(pieces[FIRST_ID:][:4])
        raise BadInput(f"vocabulary: expected {', '.join(SPECIAL)} as its first tokens, got {got}")
    # An earlier version trained it.
    if keras.ops.convert_to_numpy(model.embedding.logits_bias)[EOS_ID:].any():
        raise BadInput("logits_bias: expected zeros, since M2M100's logits have no bias, got others")
    tensors, table = tensors_of(model), float32(model.embedding.embeddings)
    control_ids, search = dict(CONTROL_IDS), dict[str, Any]()
    if not np.array_equal(*table[[BOS_ID, EOS_ID]]):
        control_ids["decoder_start_token_id"] = len(rows)
        search |= {"suppress_tokens": [len(rows)], "renormalize_logits": True}
        new_ids[BOS_ID] = len(rows)
        rows.append(BOS_ID)
    languages = {code: new_ids[id] for code, id in tokenizer.description["ids"].items()}
    if target := tokenizer.description["target_language"]:
        search["forced_bos_token_id"] = languages[target]
    tokens_config, vocabulary = _files_of_tokenizer(tokenizer, pieces, new_ids, languages)
    config = {"architectures": ["M2M100ForConditionalGeneration"], "model_type": "m2m_100", "vocab_size": len(rows)}
    files = settings_of(translator, config | control_ids, search | control_ids, tokens_config)
    return Contents(tensors | {TABLES[0]: table[rows]}, files | vocabulary | tokenizer.files)


def _files_of_tokenizer(
    tokenizer: M2M100Tokenizer, pieces: list[str], new_ids: dict[int, int], languages: dict[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns tokenizer_config.json and the file of the vocabulary, if any.

    `pieces` are by our ids, `new_ids` the checkpoint's by ours, and `languages` the checkpoint's by code.
    """
    description, silent = tokenizer.description, {*tokenizer.description["silent"]}
    plain = {piece for piece in tokenizer.added if pieces.index(piece) not in silent}
    unlisted = silent | set(map(pieces.index, plain))
    ids = {pieces[id]: row for id, row in new_ids.items() if id not in unlisted or pieces[id] in SPECIAL}
    added = {row: pieces[id] for id, row in new_ids.items() if id in unlisted and not MADE_UP.fullmatch(pieces[id])}
    special = [pieces[id] for id in description["ids"].values()]
    if BOS_ID in new_ids:
        added[new_ids[BOS_ID]] = unused("<start>", dict.fromkeys(pieces))
        special.append(added[new_ids[BOS_ID]])
    # Whitespace before a token is also a token, or not, in `transformers` 4 and 5.
    flags = {token: PLAIN | {"lstrip": not spaced, "normalized": spaced} for token, spaced in tokenizer.added.items()}
    config = {
        "src_lang": description["source_language"],
        "tgt_lang": description["target_language"],
        "additional_special_tokens": special,
        "added_tokens_decoder": {
            str(row): flags.get(token, PLAIN) | {"content": token, "special": token not in plain}
            for row, token in added.items()
        },
    }
    if all(pieces[id] == code for code, id in description["ids"].items()):
        engine = tokenizer.source.processor
        order = [*SPECIAL, *(engine.id_to_piece(id) for id in range(3, engine.vocab_size()))]
        if ids != {piece: row for row, piece in enumerate(order)}:
            raise BadInput(f"vocabulary: expected the order of {PIECES}, as NLLB-200's models have it, got another")
        return config | {"tokenizer_class": "NllbTokenizer"}, {}
    for name, codes in BY_NAME.items():
        if all(languages.get(code) == len(ids) + i for i, code in enumerate(codes.split())):
            return config | {"tokenizer_class": "M2M100Tokenizer", "language_codes": name}, {"vocab.json": ids}
    got = ", ".join([*languages][:5])
    raise BadInput(f"languages: expected those of M2M100 after all pieces, in its order, got {got}")


FAMILY = Family(
    "m2m100",
    M2M100Config,
    M2M100Transformer,
    M2M100Tokenizer,
    # transformers 5 writes NLLB-200's tokenizer.json without its SentencePiece model.
    recognizes=lambda folder: (
        (folder / PIECES).is_file()
        or (
            (folder / "tokenizer.json").is_file()
            and any(b'"m2m_100"' in read_bytes(file) for file in folder.glob("config.json"))
        )
    ),
    load=lambda folder: M2M100Checkpoint(folder).load(),
    write=write,
)
