"""Every family, saved in every format and dtype, has the same outputs at every entry point of matrix.py that takes the
format. Others raise a one-line error. New families, formats, programs and clients need a row or column here.
"""

import itertools
import re
import shutil

import pytest
import tensorflow as tf
from matrix import CANNOT_BE_SAVED, ENTRY_POINTS, FAMILIES, TEXTS, ProgramFailed
from programs import ROOT

import tf_transformer as tt
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.models.families import families
from tf_transformer.serving.formats import formats
from trainers.__main__ import PROGRAMS

# Rows that are not slow, by format: those whose graphs differ most. The first one also has the cells of errors.
ROWS = {
    "savedmodel": [("marian", "float32")],  # test_m2m100_export.py opens one of several languages
    "litert": [("transformer", "int8")],
    "onnx": [("transformer_learned", "float32")],
    "ctranslate2": [("marian", "float32"), ("m2m100_nllb", "float32")],
    "argos": [("transformer", "float32")],
    "transformers": [("m2m100_nllb", "float32")],
}
PAIR = {"source_language": "en", "target_language": "de"}  # which a package for Argos Translate needs
CARD = {"languages": "en, de", "license": "cc-by-4.0"}


def test_the_table_has_what_the_registries_have():
    assert {family.split("_")[0] for family in FAMILIES} == {family.name for family in families()}
    assert {format for entry_point in ENTRY_POINTS.values() for format in entry_point.takes} == formats().keys()
    train_or_draw = {"translation", "parsing", "prepare", "attention", "export"}
    assert PROGRAMS.keys() - ENTRY_POINTS.keys() == train_or_draw
    clients = {file.stem for file in (ROOT / "savedmodels/clients").glob("*.py")}
    assert clients == {"rest", "grpc_client", "litert_client", "onnx_client"}
    assert {"REST", "gRPC", "client file"} <= ENTRY_POINTS.keys()
    translators = {name for name in tt.__all__ if name.endswith("Translator") or name == "load"}
    assert translators == {"load", "Translator"}


def cells():
    """An error for a format does not depend on family and dtype, so one row has such cells."""
    for family, format in itertools.product(FAMILIES, formats().values()):
        for dtype, entry_point in itertools.product(format.dtypes, ENTRY_POINTS):
            outputs, chosen = format.name in ENTRY_POINTS[entry_point].takes, (family, dtype) in ROWS[format.name]
            is_first = (family, dtype) == ROWS[format.name][0]
            if (family, format.name) in CANNOT_BE_SAVED or not (outputs or is_first):
                continue
            slow = not chosen or (entry_point == "check" and outputs)
            fast = family == "marian" and format.name != "savedmodel"  # exported in no time
            marks = pytest.mark.slow if slow else () if fast else pytest.mark.program
            cell = family, format.name, dtype, entry_point
            yield pytest.param(*cell, marks=marks, id="-".join(cell))


class Row:
    """One export and its expected outputs."""

    def __init__(self, family, format, dtype, translator, folder):
        self.name = (family, format, dtype)
        self.model = FAMILIES[family](translator, folder / "checkpoint")
        self.path, self._expected = folder / "name" / "1", None
        if format in ("ctranslate2", "argos", "transformers"):
            # Their length penalties differ, and a checkpoint does not store how long an output of a source may be.
            defaults = ("max_source_length", "extra_length") if format == "transformers" else ()
            self.model = self.model.replace(beam_size=1, **{name: SEARCH_OPTIONS[name].default for name in defaults})
        slow = (family, dtype) not in ROWS[format]
        options = {"completions": True} if format == "savedmodel" and slow and family != "transformer_parser" else {}
        # The languages of a card, with which a model of one pair stays one.
        options |= PAIR if format == "argos" else CARD if format != "ctranslate2" and "m2m100" not in family else {}
        formats()[format].save(self.model, self.path, None if dtype == "float32" else dtype, **options)

    def expected(self):
        """Returns the model's own outputs, with weights of the export's dtype."""
        if self._expected is None:
            (family, format, dtype), model = self.name, self.model
            if (format, dtype) == ("onnx", "int8") or (format == "transformers" and dtype != "float32"):
                # ONNX has one scale for all beams, and a checkpoint computes in 32 bits.
                model = tt.load(self.path)
            elif format == "savedmodel" and dtype != "float32":
                model = model.astype(dtype)
            self._expected = model(TEXTS[family])
        return self._expected


@pytest.fixture(autouse=True)
def seed():
    """Keeps the seed, since nothing here is random and TensorFlow would prepare every function for a new seed."""


@pytest.fixture(scope="module")
def saved_in(translator, tmp_path_factory):
    """Exports a row once for all entry points. TensorFlow also loads it once."""
    rows, load, loaded = {}, tf.saved_model.load, {}

    def once(path):
        if path not in loaded:
            loaded.clear()
            loaded[path] = load(path)
        return loaded[path]

    def of(*name):
        if name not in rows:
            for row in rows.values():
                shutil.rmtree(row.path.parent.parent)
            rows.clear()
            rows[name] = Row(*name, translator, tmp_path_factory.mktemp("row"))
        return rows[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf.saved_model, "load", once)
        yield of


@pytest.mark.parametrize(("family", "format", "dtype", "entry_point"), cells())
def test_cell(family, format, dtype, entry_point, saved_in):
    row, entry_point = saved_in(family, format, dtype), ENTRY_POINTS[entry_point]
    texts = TEXTS[family]
    if format in entry_point.takes:
        outputs = entry_point.outputs(row.path, texts)
        if outputs is not None:
            assert outputs == row.expected()
            assert [bool(output) for output in outputs] == [bool(text.strip()) for text in texts]
        return
    with pytest.raises(Exception) as error:
        entry_point.outputs(row.path, texts)
    if entry_point.ours:
        assert isinstance(error.value, tt.BadInput | OSError | ProgramFailed), error.value
        message = str(error.value)
        assert "\n" not in message and str(row.path) in message and "expected" in message, message


@pytest.mark.program
@pytest.mark.parametrize("family", sorted({family for family, _ in CANNOT_BE_SAVED}))
def test_what_cannot_be_saved(family, translator, tmp_path):
    model = FAMILIES[family](translator, tmp_path / "checkpoint")
    for format in (format for name, format in CANNOT_BE_SAVED if name == family):
        with pytest.raises(tt.BadInput, match=re.escape(CANNOT_BE_SAVED[family, format])):
            formats()[format].save(model, tmp_path / "1", None, **(PAIR if format == "argos" else {}))
    assert not (tmp_path / "1").exists()
