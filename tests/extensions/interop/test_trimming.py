"""Translators with fewer pieces: the same tokens, and the same logits of the pieces that are kept."""

import runpy
from pathlib import Path

import keras
import numpy as np
import pytest
import sentencepiece
from checkpoints import M2M100, MARIAN
from conftest import array, random_model

import tf_transformer as tt
from tf_transformer.extensions.interop.families.marian.model import MarianConfig
from tf_transformer.extensions.interop.families.marian.tokenizer import SOURCE, TARGET, MarianTokenizer
from tf_transformer.extensions.interop.families.pieces import VOCABULARY, archive_of
from tf_transformer.extensions.interop.vocabularies import trimmed
from tf_transformer.models.families import build_model
from tf_transformer.tokenizers.tokenizer import EOS_ID, UNKNOWN_ID

MIXED = [
    "The old woman opens the red door.",
    "Старая женщина открывает дверь.",
    "老婦人打開紅門。",
    "Ein Kind schläft, 12 %!",
]
LATIN = [MIXED[0], MIXED[3]]


def separate(folder):
    runpy.run_path(str(Path(__file__).parents[2] / "marian/separate.py"))["split"](folder)
    return tt.Translator.from_pretrained(folder)


def own(kind):
    tokenizer = tt.Tokenizer.train_from_iterator(
        MIXED * 53, 313, kind, user_defined_symbols=["<2de>"], control_tokens=["(S"]
    )
    return tt.Translator(random_model(tokenizer.vocab_size, 3, 1.0, {}), tokenizer, beam_size=2, extra_length=7)


TRANSLATORS = {
    "bpe": lambda folder: own("bpe"),
    "unigram": lambda folder: own("unigram"),
    "ensemble": lambda folder: own("bpe").replace(
        model=tt.Ensemble([random_model(313, seed, 1.0, {}) for seed in (3, 5)])
    ),
    "marian": lambda folder: tt.Translator.from_pretrained(MARIAN),
    "marian of two vocabularies": separate,
    "m2m100": lambda folder: tt.Translator.from_pretrained(M2M100, source_language="en", target_language="de"),
}


@pytest.fixture(params=TRANSLATORS)
def translator(request, tmp_path):
    return TRANSLATORS[request.param](tmp_path / "checkpoint")


def test_tokens_and_logits_of_what_stays(translator):
    texts = ["The old woman.", "Ein rotes Haus."]
    small = trimmed(translator, texts, scripts=[])
    old, new = translator.tokenizer, small.tokenizer
    assert new.vocab_size < old.vocab_size
    for text in texts:
        assert new.source_tokens(new.encode([text])[0]) == old.source_tokens(old.encode([text])[0])
        assert new.tokens(new.encode_target([text])[0]) == old.tokens(old.encode_target([text])[0])
        assert new.decode(new.encode_target([text])) == old.decode(old.encode_target([text]))
        assert new.tokenize([text]).to_list() == new.encode([text])

    def logits(one):
        source, target = one.tokenizer.encode(texts[:1])[0], one.tokenizer.encode_target(texts[1:])[0]
        inputs = np.array([[*source, EOS_ID]]), np.array([[*one.tokenizer.start_ids(), *target]])
        models = getattr(one.model, "models", [one.model])
        return [keras.ops.convert_to_numpy(model(inputs)) for model in models]

    pieces = old.tokens(range(old.vocab_size))
    kept = [pieces.index(piece) for piece in new.tokens(range(new.vocab_size))]
    for ours, theirs in zip(logits(small), logits(translator), strict=True):
        # A narrower softmax layer may add in another order.
        np.testing.assert_allclose(ours, theirs[..., kept], rtol=1e-4, atol=1e-5)


def test_scripts_of_the_texts_stay_whole():
    translator = own("bpe")
    small = trimmed(translator, LATIN)
    pieces = small.tokenizer.tokens(range(small.tokenizer.vocab_size))
    dropped = {*translator.tokenizer.tokens(range(translator.tokenizer.vocab_size))} - {*pieces}
    assert dropped and not any(letter.isascii() or letter == "ä" for piece in dropped for letter in piece.strip("▁"))
    assert small.tokenizer.control_tokens == ["(S"] and small.tokenizer.encode(["<2de>"])[0][-1:] != [3]
    assert small.tokenizer.decode(small.tokenizer.encode(MIXED)) == MIXED  # by bytes
    both = trimmed(translator, LATIN, scripts=["latin", "CYRILLIC"])
    assert small.tokenizer.vocab_size < both.tokenizer.vocab_size < translator.tokenizer.vocab_size


def test_texts_may_have_other_scripts_than_the_vocabulary():
    translator = own("bpe")
    small = trimmed(translator, [*LATIN, "\u0928\u092e\u0938\u094d\u0924\u0947 \U0001f642"])  # Devanagari, in bytes
    assert small.tokenizer.vocab_size == trimmed(translator, LATIN).tokenizer.vocab_size


def test_bytes_are_kept():
    model = own("bpe").tokenizer.model
    engine = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = ["<a>", "<b>", "</s>", "<unk>", *map(engine.id_to_piece, range(5, engine.vocab_size()))]
    tokenizer = MarianTokenizer(archive_of({SOURCE: model, TARGET: model, VOCABULARY: pieces}))
    sizes = {"num_decoder_heads": 2, "decoder_d_ff": 31, "num_decoder_layers": 1}
    config = MarianConfig(1, 14, 31, 2, vocab_size=len(pieces), **sizes)
    small = trimmed(tt.Translator(build_model(config), tokenizer), MIXED[1:2], scripts=["CYRILLIC"]).tokenizer
    assert small.vocab_size < tokenizer.vocab_size
    assert UNKNOWN_ID not in small.encode(["Zebra"])[0] and small.decode(small.encode(["Zebra"])) == ["Zebra"]


def test_languages_stay_by_choice():
    """`test_tokens_and_logits_of_what_stays` has those of the pair."""
    many = tt.Translator.from_pretrained(M2M100, source_language="en", target_language="fr")
    small = trimmed(many, ["The old woman.", "Ein Haus."], languages=["de"])
    assert list(small.languages) == ["en", "fr", "de"]
    old, new = (one.tokenizer.with_languages("de", "de") for one in (many, small))
    assert old.source_tokens(old.encode(["a"])[0]) == new.source_tokens(new.encode(["a"])[0])
    rows = [array(one.model.embedding.embeddings)[one.tokenizer.language_ids["de"]] for one in (many, small)]
    np.testing.assert_array_equal(*rows)
    with pytest.raises(tt.BadInput, match="languages: expected one of 100 languages, .* got 'xx'"):
        trimmed(many, ["a"], languages=["xx"])


@pytest.mark.program
def test_a_checkpoint_answers_as_the_translator(tmp_path):
    texts = ["The old woman opens it.", "Ein Haus.", ""]
    small = trimmed(TRANSLATORS["m2m100"](tmp_path), texts, scripts=[])
    small = small.replace(beam_size=1, extra_length=50, max_source_length=256)
    small.save(tmp_path / "name" / "1", format="transformers")
    assert tt.load(tmp_path / "name" / "1")(texts) == small(texts)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("abc", {}, "^texts: expected texts of both languages, such as .*, got 'abc'$"),
        ([], {}, "^texts: expected texts"),
        (["a", 3], {}, "^texts: expected texts"),
        (["a"], {"scripts": ["KLINGON"]}, "^scripts: expected names among CJK, CYRILLIC, LATIN, .* got KLINGON$"),
        (["a"], {"scripts": "LATIN"}, "^scripts: expected a list of names, got 'LATIN'$"),
        (["a"], {"languages": ["de"]}, "^languages?: expected"),
    ],
)
def test_what_is_refused(texts, options, message):
    with pytest.raises(tt.BadInput, match=message):
        trimmed(own("bpe"), texts, **options)
    with pytest.raises(tt.BadInput, match="got int8. Trim it before astype"):
        trimmed(own("bpe").astype("int8"), ["a"])
