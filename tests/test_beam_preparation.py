"""Records made by a Beam pipeline are those of the plain loop, to the byte."""

import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_records import contents, rows, write_text

import tf_transformer as tt
from tf_transformer import toy_corpus
from tf_transformer.corpora import preparation

beam = pytest.importorskip("apache_beam")
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

PAIRS, SHARD = 331, 53


@pytest.fixture(scope="module")
def corpus():
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    pairs[7], pairs[120], pairs[300] = pairs[3], pairs[119], pairs[3]
    pairs[11], pairs[62], pairs[200] = ("same", "same"), ("", "leer"), ("long " * 300, "lang")
    return pairs, tt.Tokenizer.learn_from([text for pair in pairs for text in pair], 350)


@pytest.mark.parametrize("filters", [tt.Filters(), tt.Filters(duplicates=True, identical=True)])
def test_a_pipeline_writes_what_the_loop_writes(corpus, tmp_path, monkeypatch, filters):
    monkeypatch.setattr(preparation, "BUCKET_PAIRS", 150)
    pairs, tokenizer = corpus
    source = tt.sources.TextSource(*write_text(tmp_path, pairs), skip_bad_lines=True)
    loop, spread = (tt.Preparation(source, tmp_path / name, filters) for name in ("loop", "spread"))
    assert pickle.loads(pickle.dumps(spread)) == spread
    parts = source.parts(SHARD, tmp_path)
    assert len(list(loop.run(parts, tokenizer))) == 7
    for _ in range(2):  # the second time everything is there
        with beam.Pipeline(FnApiRunner()) as pipeline:
            _ = pipeline | tt.beam.Prepare(spread, parts, tokenizer)
        assert contents(spread.folder) == contents(loop.folder)
    found = tt.records.Records(spread.folder)
    lines = [line for _, _, line in rows(spread.folder)]
    left_out = {8, 121, 301} | {12} if filters.duplicates else set()
    assert lines == [line for line in range(1, PAIRS + 1) if line not in {63, 201} | left_out]
    assert found.filtered == ({"duplicates": 3, "identical": 1} if left_out else {})
