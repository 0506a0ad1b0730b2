"""Translators with more tokens and languages: what they had stays, and new rows begin as their relatives."""

import dataclasses
import shutil

import numpy as np
import pytest
from checkpoints import M2M100
from conftest import array
from test_trimming import TRANSLATORS, own

import tf_transformer as tt
from tf_transformer.extensions.interop.vocabularies import with_language, with_tokens
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, UNKNOWN_ID

TEXTS = ["The old woman.", "Ein rotes Haus."]
TOKENS = ["<term>", "</term>", "東", "oldwoman"]
TAGGED = "The <term>old</term> oldwoman 東東x"


@pytest.fixture(scope="module")
def many():
    return tt.Translator.from_pretrained(M2M100, source_language="en", target_language="de")


def table_of(translator):
    return array(getattr(translator.model, "models", [translator.model])[-1].embedding.embeddings)


def by_name(old, new):
    """Returns the new ids of all old ids."""
    sides = [(old.tokens, new.tokens, old.vocab_size, new.vocab_size)]
    if hasattr(old, "source"):
        sides.append((old.source_tokens, new.source_tokens, len(old.source.pieces), len(new.source.pieces)))
    found = []
    for before, after, size, new_size in sides:
        ids, names = iter(range(new_size)), after(range(new_size))
        found.append([next(id for id in ids if names[id] == name) for name in before(range(size))])
    return found[0], found[-1]


def fed(tokenizer):
    """Returns the ids of a source, and of a target after its start."""
    source, target = tokenizer.encode(TEXTS[:1])[0], tokenizer.encode_target(TEXTS[1:])[0]
    ids = [*source, EOS_ID], [*tokenizer.start_ids(), *target[tokenizer.num_language_tokens :]]
    return [np.array([side]) for side in ids]


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_the_rest_stays(kind, tmp_path):
    """Ids of texts, and logits. A wider softmax layer may add in another order."""
    old = TRANSLATORS[kind](tmp_path / "checkpoint")
    new = with_tokens(old, TOKENS)
    if old.languages:
        new = with_language(new, "mic", like="fr")
    target, source = by_name(old.tokenizer, new.tokenizer)
    inputs = fed(old.tokenizer)
    moved = [np.take(ids, side) for ids, side in zip((source, target), inputs, strict=True)]
    assert new.tokenizer.encode(TEXTS[:1])[0] == moved[0][0, :-1].tolist()
    models = [getattr(one.model, "models", [one.model]) for one in (old, new)]
    for before, after in zip(*models, strict=True):
        expected = array(before(inputs))
        np.testing.assert_allclose(array(after(moved))[..., target], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", TRANSLATORS)
def test_a_token_is_one_id_in_python_and_in_graphs(kind, tmp_path):
    translator = TRANSLATORS[kind](tmp_path / "checkpoint")
    tokenizer = with_tokens(with_tokens(translator, TOKENS[:3]), TOKENS[3:]).tokenizer
    (ids,), (targets,) = tokenizer.encode([TAGGED]), tokenizer.encode_target([TAGGED])
    assert [token for token in tokenizer.source_tokens(ids) if token in TOKENS] == [*TOKENS[:2], "oldwoman", "東", "東"]
    assert tokenizer.tokenize([TAGGED]).to_list() == [ids]
    assert tokenizer.tokenize_target([TAGGED]).to_list() == [targets]
    spaced = "The <term> old </term> oldwoman 東東x" if hasattr(tokenizer, "added") and tokenizer.added else TAGGED
    assert tokenizer.decode([targets]) == [spaced]
    assert [text.decode() for text in tokenizer.detokenize([targets]).numpy()] == [spaced]


def test_new_rows(many):
    old, table = many.tokenizer, table_of(many)
    new = with_tokens(with_tokens(many, ["Acme", "東", ">>x<<"]), ["<term>"], like="un")
    row = lambda token: table_of(new)[new.tokenizer.target.ids[token]]  # noqa: E731
    parts = [id for id in old.encode(["Acme"])[0][1:] if id != UNKNOWN_ID and old.tokens([id]) != ["▁"]]
    np.testing.assert_allclose(row("Acme"), table[parts].mean(axis=0), rtol=1e-6)
    silent = {*old.description["silent"]}
    everything = [id for id in range(BOS_ID, old.vocab_size) if id not in silent and id > UNKNOWN_ID]
    np.testing.assert_allclose(row("東"), table[everything].mean(axis=0), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(row("<term>"), table[old.target.ids["un"]])


def test_a_language_begins_as_its_relative(many):
    new = with_language(many, "mic", like="de", texts=["Zwei 犬 犬ども"])
    assert new.languages == [*many.languages, "mic"] and new.metadata["target_language"] == "de"
    ids = new.tokenizer.language_ids
    np.testing.assert_array_equal(table_of(new)[ids["mic"]], table_of(many)[many.tokenizer.language_ids["de"]])
    kept, _ = by_name(many.tokenizer, new.tokenizer)
    for side, relatives, pair in ((1, ("en", "de"), ("en", "mic")), (0, ("de", "en"), ("mic", "en"))):
        inputs = fed(new.tokenizer.with_languages(*pair))
        assert ids["mic"] in inputs[side] and ids["de"] not in inputs[side]
        expected = array(many.model(fed(many.tokenizer.with_languages(*relatives))))
        np.testing.assert_allclose(array(new.model(inputs))[..., kept], expected, rtol=1e-4, atol=1e-5)
    tokenizer = new.tokenizer.with_languages("mic", "mic")
    (row,) = tokenizer.encode(["犬ども"])
    assert tokenizer.tokens(row) == ["__mic__", "▁", "犬", "ど", "も"] and tokenizer.decode([row]) == ["犬ども"]


@pytest.mark.slow
def test_a_run_begins_with_it_and_an_ensemble_takes_its_languages(many, text, unscored, tmp_path):
    start = with_tokens(with_language(many, "mic", like="de"), ["<term>"]).replace(target_language="mic")
    corpus = tt.TextCorpus(train=(text / "train.en", text / "train.de"), dev=(text / "dev.en", text / "dev.de"))
    recipe = dataclasses.replace(tt.RECIPES["finetune"], epochs=None, steps=1, learning_rate=1e-9)
    tt.Trainer(tmp_path / "one", start.model.config, corpus, recipe, start=start).fit()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    run = tt.load(tmp_path / "one")
    assert run.metadata["target_language"] == "mic" and [*run.tokenizer.added] == ["<term>"]
    assert run(TEXTS[:1]) == start(TEXTS[:1]) and run(TEXTS[:1], target_language="de") == many(TEXTS[:1])
    both = tt.load([tmp_path / "one", tmp_path / "two"])
    assert both(TEXTS[:1]) == start(TEXTS[:1]) and both.languages == start.languages
    options = {"source_language": "de", "target_language": "en"}
    assert both(TEXTS[1:], **options) == many(TEXTS[1:], **options)


REFUSED = {
    "^code: expected a new language, got 'fr', which the model has$": lambda many: with_language(many, "fr", "de"),
    "^like: expected one of 100 languages, .*; got 'xx'$": lambda many: with_language(many, "mic", "xx"),
    "^code: expected one such as mic, got 'mic_Latn x'$": lambda many: with_language(many, "mic_Latn x", "de"),
    "^texts: expected a list of texts in this language, got 'abc'$": lambda many: with_language(
        many, "mic", "de", "abc"
    ),
    "^translator: expected a model of several languages, got one of one pair": lambda many: with_language(
        own("bpe"), "mic", "de"
    ),
    "^tokens: expected a list, .*, got '<term>'$": lambda many: with_tokens(many, "<term>"),
    "^tokens: expected a list, .*, got \\[\\]$": lambda many: with_tokens(many, []),
    "^tokens: expected printable text without whitespace, .* got 'a b'$": lambda many: with_tokens(many, ["a b"]),
    "^tokens: expected new ones, got 'un', which is in": lambda many: with_tokens(many, ["un"]),
    "^tokens: expected text in the vocabulary's normal form, got '①'$": lambda many: with_tokens(own("unigram"), ["①"]),
    "^like: expected a token of the vocabulary, got 'xyz'$": lambda many: with_tokens(many, ["<term>"], like="xyz"),
    "^translator: .* got int8. Extend it before astype.$": lambda many: with_tokens(many.astype("int8"), ["<term>"]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message, many, needs_int8):
    with pytest.raises(tt.BadInput, match=message) as error:
        REFUSED[message](many)
    assert "\n" not in str(error.value)


def test_adapters_are_refused():
    translator = own("bpe")
    translator.model.decoder_layers[0].feed_forward.hidden.enable_lora(3)
    for extend in (
        lambda: with_tokens(translator, ["<term>"]),
        lambda: with_language(translator, "mic", "de"),
    ):
        with pytest.raises(tt.BadInput, match="^translator: expected a model without LoRA, got adapters. Extend it"):
            extend()
    merged = with_tokens(translator.replace(model=translator.model.merged()), ["<term>"])
    assert "<term>" in merged.tokenizer.tokens(merged.tokenizer.encode(["<term>"])[0])
