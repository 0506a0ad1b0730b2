"""Records made by a Beam pipeline are those of the plain loop, to the byte."""

import functools
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_records import contents, rows, write_text

import tf_transformer as tt
from tf_transformer.data import toy_corpus
from tf_transformer.extensions.records import preparation
from tf_transformer.extensions.records.records import Records

beam = pytest.importorskip("apache_beam")
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

ROOT = Path(__file__).parents[3]
PAIRS, SHARD = 331, 53


@pytest.fixture(scope="module")
def corpus():
    pairs = toy_corpus.corpus(train=PAIRS, dev=0, test=0)["train"]
    pairs[7], pairs[120], pairs[300] = pairs[3], pairs[119], pairs[3]
    pairs[11], pairs[62], pairs[200] = ("same", "same"), ("", "leer"), ("long " * 300, "lang")
    return pairs, tt.Tokenizer.train_from_iterator([text for pair in pairs for text in pair], 350)


CLEAN = tt.Filters(duplicates=True, identical=True)


@pytest.mark.parametrize(("filters", "cut", "shards"), [(tt.Filters(), 0, 7), (CLEAN, 167, 8)])
def test_a_pipeline_writes_what_the_loop_writes(corpus, tmp_path, monkeypatch, filters, cut, shards):
    """With one source or two joined ones."""
    monkeypatch.setattr(preparation, "BUCKET_PAIRS", 150)
    pairs, tokenizer = corpus
    source = tt.sources.TextSource(*write_text(tmp_path, pairs[cut:]), skip_bad_lines=True)
    if cut:
        first = tt.sources.MemorySource(*zip(*pairs[:cut], strict=True))
        source = tt.sources.JoinedSource([first, source])
    loop, spread = (tt.Preparation(source, tmp_path / name, filters) for name in ("loop", "spread"))
    assert pickle.loads(pickle.dumps(spread)) == spread
    parts = source.parts(SHARD, tmp_path)
    assert len(loop.run(parts, tokenizer)) == shards
    for _ in range(2):  # the second time everything is there
        with beam.Pipeline(FnApiRunner()) as pipeline:
            _ = pipeline | tt.beam.Prepare(spread, parts, tokenizer)
        assert contents(spread.folder) == contents(loop.folder)
    records = Records(spread.folder)
    lines = [line for _, _, line in rows(spread.folder)]
    left_out = {8, 121, 301} | {12} if filters.duplicates else set()
    assert lines == [line for line in range(1, PAIRS + 1) if line not in {63, 201} | left_out]
    assert records.filtered == ({"duplicates": 3, "identical": 1} if left_out else {})


PROGRAM = """
import sys
from trainers import prepare
from trainers.command import load_backend, run_program
load_backend()
from tf_transformer.extensions.records import records
records.SHARD_LINES = 5_000
run_program(lambda: prepare.main(sys.argv[1:]))
"""


def command(*argv):
    return [sys.executable, "-c", PROGRAM, *map(str, argv)]


def prepared(folder, times):
    """Makes records of 900 pairs `times` times, each with its number. Returns the arguments, and the folder."""
    pairs = toy_corpus.corpus(train=900, dev=0, test=0)["train"]
    every = [(f"{i} {source}", f"{target} {i}") for i in range(times) for source, target in pairs]
    names = write_text(folder, every[3:])
    argv = ["--train", *names, "--vocab-size", 400, "--filter", "duplicates"]
    subprocess.run(command(*argv, "--to", folder / "loop"), cwd=ROOT, check=True, capture_output=True)
    return argv, folder / "loop"


@pytest.fixture(scope="module")
def of_two_shards(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("of_two_shards"), 10)


def same_records(folder, expected):
    """Compares all files except the log, and the lock, which names a process."""
    files, expected_files = (
        {name: content for name, content in contents(path).items() if name not in ("log", ".lock")}
        for path in (folder, expected)
    )
    assert files == expected_files


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["--workers", 2]], ids=["loop", "workers"])
def test_a_full_disk_costs_nothing(of_two_shards, tmp_path, workers):
    argv, expected = of_two_shards
    argv = command(*argv, "--to", tmp_path / "records", *workers)
    (tmp_path / "records").mkdir()
    shutil.copy(expected / "tokenizer.model", tmp_path / "records")
    most = (expected / "tokenizer.model").stat().st_size + 5_000
    assert most < (expected / "shard-00000/source.npy").stat().st_size
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    failed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, preexec_fn=limit)
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1), failed.stderr
    assert "File too large" in failed.stderr
    assert not list((tmp_path / "records").glob("shard-*"))
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    same_records(tmp_path / "records", expected)
