"""Shared by the tests of LiteRT and ONNX: texts, models, and the comparison of an export with its translator."""

import random
import sys

import hostile
import numpy as np
from conftest import TEXTS
from programs import ROOT

import tf_transformer as tt
from tf_transformer.extensions.interop.engines.litert_client import opened

MARIAN = ROOT / "tests/marian/trained"
sys.path.insert(0, str(MARIAN.parent))
import separate  # noqa: E402

LONG = [" ".join(["The old woman opens the red door"] * count) for count in (7, 2, 5, 3)]


def sentences(count):
    return [*(source for source, _ in tt.toy_corpus.corpus(test=count)["test"]), *TEXTS]


def hostile_texts(count):
    draw = random.Random(5)
    return [kind(draw) for kind in hostile.KINDS for _ in range(count)]


def agree(expected, folder, texts, n, fresh=0, **options):
    """Checks that an export returns the translator's `n_best`, one by one and in batches of several sizes. So do new
    clients for the last `fresh` texts."""
    client = opened(folder)
    outputs = [(text, client.n_best(text, n, **options), best) for text, best in zip(texts, expected, strict=True)]
    outputs += [(text, opened(folder).n_best(text, n, **options), ours) for text, _, ours in outputs[-fresh:] if fresh]
    for size in (2, 5, 32) if client.batch_size > 1 else ():
        client.batch_size = size
        outputs += zip(texts, client.n_best(texts, n, **options), expected, strict=True)
    for text, theirs, ours in outputs:
        assert [best.text for best in theirs] == [best.text for best in ours], text
        assert [best.finished for best in theirs] == [best.finished for best in ours], text
        for name in ("score", "log_prob"):
            pair = ([getattr(best, name) for best in n_best] for n_best in (theirs, ours))
            np.testing.assert_allclose(*pair, rtol=1e-5, atol=1e-4, err_msg=str(text))


def onnx_export(translator, made_once):
    """Exports to ONNX once. Returns the directory."""
    metadata = {"source_language": "en", "languages": "en, de", "license": "apache-2.0", "max_length": 97}
    save = lambda folder: translator.save(folder / "name/1", format="onnx", **metadata)  # noqa: E731
    return made_once("onnx", save) / "name" / "1"


def checkpoint(vocabularies, path):
    """Returns a small MarianMT checkpoint with one vocabulary, or makes one with two in `path`."""
    if vocabularies == 1:
        return MARIAN
    separate.split(path)
    return path


def trained(**options):
    """Returns a small MarianMT model for short sources, since each signature takes seconds to convert."""
    return tt.Translator.from_pretrained(MARIAN, **({"max_source_length": 31} | options))
