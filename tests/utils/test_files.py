"""Paths as users give them, and where files are written."""

import bz2
import fcntl
import gzip
import io
import lzma
import os
import resource
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path

import pytest
from conftest import HAS_EXTENSIONS
from programs import ROOT, run_python

import tf_transformer as tt
from tf_transformer.inference.savedmodel import SavedModel
from tf_transformer.serving.formats import next_version
from tf_transformer.training.losses import average_weights
from tf_transformer.training.run import Run
from tf_transformer.utils import files, folders, lines
from tf_transformer.utils.files import checksum, matching, new_file, new_folder, one_line, user_path, write_text
from tf_transformer.utils.lines import open_text

TREE = "(S (NP (PRP He)) (VP (VBD slept)))\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, and another folder to work in."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


class Entry(os.PathLike):
    """A path whose `str` is not one, like an entry of `os.scandir`."""

    def __init__(self, path):
        self._path = path

    def __fspath__(self):
        return self._path

    def __str__(self):
        raise AssertionError("expected os.fspath, got str")

    __repr__ = __str__


@pytest.mark.parametrize("new", [new_file, new_folder])
def test_a_full_disk_names_the_file(new, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, before[1]))  # bytes
    try:
        with pytest.raises(OSError, match=f"File too large: '{tmp_path}/big'$"), new(tmp_path / "big") as path:
            (path / "part" if path.is_dir() else path).write_bytes(b"eleven more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.extensions
def test_a_tilde_is_the_home_folder_wherever_a_path_goes_in(home, translator, saved):
    """Everything that `os.fspath` accepts is a path."""
    from tf_transformer.extensions.interop.engines.portable import LiteRT
    from tf_transformer.extensions.interop.families import hub
    from tf_transformer.extensions.interop.formats.ctranslate2 import save as save_ctranslate2
    from tf_transformer.extensions.parsing import treebank

    assert user_path("~/text") == home / "text"
    tt.toy_corpus.write_corpus(Entry("~/text"), train=31, dev=3, test=2)
    translator.tokenizer.save(Entry("~/run/tokenizer.model"))
    tt.Tokenizer.load(Entry("~/run/tokenizer.model"))
    tt.Tokenizer.train([Entry("~/text/train.en")], 320)
    sides = (Entry("~/text/dev.en"), Entry("~/text/dev.de"))
    corpus = tt.TextCorpus(sides, sides)
    tt.data.check_text_pairs(*sides)
    assert tt.data.read_text_pairs(*sides) == corpus.dev
    next(iter(tt.data.text_pairs(*sides, translator.tokenizer, 512)))
    write_text(Entry("~/trees"), TREE)
    tt.TreebankCorpus([Entry("~/trees")], [Entry("~/trees")], extra=[Entry("~/trees")])
    assert len(treebank.read_trees(Entry("~/trees"))) == 1 and checksum(Entry("~/trees"))
    (home / "wsj_0201.mrg").write_text(TREE)
    assert treebank.wsj_files(Entry("~"), [2]) == [home / "wsj_0201.mrg"]
    source = tt.sources.TextSource(*sides)
    preparation = tt.Preparation(source, Entry("~/records"))
    parts = source.parts(2, Entry("~/records"))
    with preparation.locked():
        assert len(preparation.run(parts, translator.tokenizer)) == 2
    tt.Corpus(tt.Records(Entry("~/records")), corpus.dev)
    assert tt.sources.ParquetSource(Entry("~/*.parquet"), ("a", "b")).pattern == f"{home}/*.parquet"
    assert tt.sources.TfdsSource("wmt", data_dir=Entry("~/tfds")).data_dir == f"{home}/tfds"
    run = Run(Entry("~/run"))
    run.begin({"kind": "translation", "model": {}, "recipe": {}, "corpus": {}})
    trainer = tt.Trainer(Entry("~/run"), translator.model.config, corpus)
    assert trainer.run.path == tt.callbacks.Checkpoints(Entry("~/run")).run.path == home / "run"
    dev = tt.callbacks.DevText(tt.Metric("BLEU"), *corpus.dev)
    assert tt.callbacks.DevScore(translator, dev, logs=Entry("~/logs")).logs == home / "logs"
    for load in (tt.load, tt.Translator.from_pretrained, lambda path: tt.load([path])):
        with pytest.raises(tt.BadInput, match="expected checkpoints, found none in .*/home/run/checkpoints"):
            load(Entry("~/run"))
    with pytest.raises(FileNotFoundError, match=f"{home}/run/no.h5"):
        average_weights(translator.model, [Entry("~/run/no.h5")])
    with new_folder(Entry("~/models/1")) as folder:
        (folder / "saved_model.pb").touch()
    assert next_version(Entry("~/models")) == home / "models" / "2"
    assert folders.saved_model_of(Entry("~/models")) == home / "models" / "1"
    assert hub.folder_of(Entry("~/models")) == home / "models"
    assert hub.origin_of(Entry("~/models"), home)["origin"] == "models"
    for load in (tt.Translator.from_pretrained, tt.load):
        with pytest.raises((tt.BadInput, FileNotFoundError), match="(~|home)/models"):
            load(Entry("~/models"))
    for save in (translator.save, tt.Parser.save, save_ctranslate2):
        with pytest.raises(FileExistsError, match=f"{home}/models/1 exists"):
            save(*[translator] * (save != translator.save), Entry("~/models/1"))
    with pytest.raises(FileNotFoundError, match=f"no model.tflite in {home}/text"):
        LiteRT(Entry("~/text"))
    (home / "linked").symlink_to(saved.parent)
    assert tt.Translator.from_pretrained(Entry("~/linked/1")).options == translator.options
    with pytest.raises(tt.BadInput, match="found no saved_model.pb in"):
        SavedModel(Entry("~/text"))
    assert matching(Entry("~/t*t/dev.*")) == [str(home / "text" / name) for name in ("dev.de", "dev.en")]
    assert not list(Path().iterdir())
    assert user_path("./~") == Path("~") and user_path("a/~/b~") == Path("a/~/b~")


def test_bytes_are_not_a_path():
    takers = (user_path, tt.load, tt.Translator.from_pretrained, Run, tt.Tokenizer.load)
    takers += (checksum, lambda path: tt.load([path]))
    if HAS_EXTENSIONS:
        from tf_transformer.extensions.parsing import treebank

        takers += (tt.Records, treebank.read_trees)
    takers += (lambda path: tt.data.check_text_pairs(path, path), lambda path: tt.TextCorpus([path] * 2, [path] * 2))
    for take in takers:
        with pytest.raises(tt.BadInput, match=r"expected .*, got (b'a'|<DirEntry b'a'>)") as error:
            take(b"a")
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(tt.BadInput, match="expected a path, got "):
        user_path(type("Custom", (os.PathLike,), {"__fspath__": lambda self: b"a"})())


def test_empty_paths_and_paths_that_are_not_utf_8():
    """An unset shell variable would be the current folder. TensorFlow rejects paths that are not UTF-8."""
    for take in (user_path, tt.load, Run, tt.Tokenizer.load, *([tt.Records] if HAS_EXTENSIONS else [])):
        with pytest.raises(tt.BadInput, match="expected a path, got an empty one"):
            take("")
    for take in (user_path, Run, tt.Tokenizer.load):
        with pytest.raises(tt.BadInput, match=r"expected a path in UTF-8, got 'runs/caf\\udce9'"):
            take("runs/caf\udce9")


def test_brackets_in_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("text[1]/a.en", "text[1]/b.en", "text1/a.en", "c[d].en", "cd.en", "c*.en"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("one\n")
    assert matching("text[1]/a.en") == ["text[1]/a.en"]
    assert matching("text[1]/*.en") == ["text[1]/a.en", "text[1]/b.en"]
    assert matching(tmp_path / "text[1]" / "*") == [str(tmp_path / "text[1]" / name) for name in ("a.en", "b.en")]
    assert matching("c[d].en") == ["c[d].en"] and matching("c*.en") == ["c*.en"]
    assert matching("[c]*.en") == ["c*.en", "c[d].en", "cd.en"]
    assert matching("text?/*.en") == ["text1/a.en"] and matching("**/b.en") == ["text[1]/b.en"]
    assert matching("nowhere/*") == matching("text[1]/no") == []


def test_one_line():
    assert one_line("a\r\nb\u2028c\n\x85") == "a b\u2028c \x85"


@pytest.mark.parametrize("damage", [lambda whole: whole[:-100], lambda whole: whole[:-8] + bytes(8), lambda _: b"no"])
def test_a_damaged_gz_raises_bad_input(tmp_path, damage):
    (tmp_path / "text.gz").write_bytes(damage(gzip.compress(os.urandom(1_000).hex().encode())))
    with (
        pytest.raises(tt.BadInput, match=r"text\.gz: expected a whole gzip file"),
        open_text(tmp_path / "text.gz") as f,
    ):
        f.read()


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    write_text(tmp_path / "pipe", iter(["one\n", "two\n"]))
    reader.join(10)
    assert read == ["one\ntwo\n"]
    assert (tmp_path / "pipe").is_fifo() and [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_the_target_of_a_link_is_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("before")
    for link, target in (("link", "folder/file"), ("dangling", "folder/new")):
        (tmp_path / link).symlink_to(target)
        with pytest.raises(KeyError), new_file(tmp_path / link) as temporary:
            temporary.write_text("half")
            raise KeyError
        assert (tmp_path / "folder" / "file").read_text() == ("before" if link == "link" else "after")
        before = (tmp_path / "folder" / "file").stat().st_ino
        write_text(tmp_path / link, "after")
        assert (tmp_path / link).is_symlink() and (tmp_path / target).read_text() == "after"
    assert (tmp_path / "folder" / "file").stat().st_ino == before  # the other link's
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dangling", "file", "folder", "link", "new"]


def test_what_is_written_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """After a power failure, a name could otherwise belong to an empty file."""
    events, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), events.append(os.fstat(file).st_ino)))
    for name in ("replace", "rename"):
        move = getattr(os, name)
        monkeypatch.setattr(os, name, lambda old, new, move=move: (events.append("move"), move(old, new)))

    def flushed(*paths):
        """Returns whether each path was flushed before something was moved to its name."""
        before = events[: events.index("move")]
        return [path.stat().st_ino in before for path in paths]

    write_text(tmp_path / "text", "text")
    assert flushed(tmp_path / "text") == [True]
    events.clear()
    with new_folder(tmp_path / "1") as folder:
        (folder / "inner").mkdir()
        (folder / "inner/file").write_text("text")
    assert flushed(*(tmp_path / "1" / name for name in ("", "inner", "inner/file"))) == [True] * 3
    assert events[-1] == tmp_path.stat().st_ino  # and then its name


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    """A new one has the mode that every program's files have."""
    path, plain = tmp_path / "file", tmp_path / "plain"
    plain.touch()
    write_text(path, "first")
    assert path.stat().st_mode == plain.stat().st_mode
    for mode in (0o600, 0o640, 0o444, 0o200):
        path.chmod(mode)
        with new_file(path) as temporary:
            assert temporary.stat().st_mode & 0o077 == 0, "others can read what is not yet theirs"
            temporary.write_text(f"{mode}")
        assert path.stat().st_mode & 0o777 == mode
    path.chmod(0o600)
    assert path.read_text() == f"{0o200}"


def test_several_writers_of_one_file(tmp_path):
    path = tmp_path / ("ü" * 120)  # 240 bytes of at most 255
    with new_file(path) as first, new_file(path) as second:
        first.write_text("first " * 1_000)
        second.write_text("second")
        assert not path.exists()
    assert path.read_text() == "first " * 1_000 and list(tmp_path.iterdir()) == [path]


def test_unfinished_files_are_removed(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_text(tmp_path / "out", (str(1 // (2 - i)) for i in range(7)))
    with pytest.raises(FileNotFoundError, match=f"'{tmp_path}/nowhere/out'"):
        write_text(tmp_path / "nowhere/out", "text")
    assert not list(tmp_path.iterdir())
    lines = [
        "import itertools, sys, time",
        "from tf_transformer.utils.files import write_text",
        "from trainers.command import run_program",
        "def text():",
        "    yield 'half'",
        "    print('writing', flush=True)",
        "    time.sleep(60)",
        "run_program(lambda: write_text(sys.argv[1], text()))",
    ]
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path / "out")]

    def as_in_a_terminal():  # nohup, and & in a script, have signals ignored
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    for number, status in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": as_in_a_terminal}
        with subprocess.Popen(command, cwd=ROOT, **options) as process:
            process.stdout.readline()
            process.send_signal(number)
            assert process.wait(30) == status
        assert not list(tmp_path.iterdir())
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.readline()
        process.kill()
    (left,) = tmp_path.iterdir()
    write_text(tmp_path / "out", "whole")
    assert matching(tmp_path / "*") == [str(tmp_path / "out")] and left.name.startswith(".out-")


def test_standard_output_as_a_file_is_written_to(tmp_path):
    program = "from tf_transformer.utils.files import write_text; print(1); write_text('/dev/stdout', '2\\n'); print(3)"
    (tmp_path / "log").write_text("0\n")
    with open(tmp_path / "log", "a") as log:
        subprocess.run([sys.executable, "-c", program], stdout=log, check=True, cwd=ROOT)
    assert (tmp_path / "log").read_text() == "0\n1\n2\n3\n"
    piped = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT)
    assert piped.stdout == b"1\n2\n3\n"


class Windows:
    """`os` where no directory opens, and nothing that is open for reading only is flushed."""

    name = "nt"

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, flags):
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        return os.open(path, flags)

    def fsync(self, descriptor):
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_RDWR:
            raise OSError(9, "Bad file descriptor")
        os.fsync(descriptor)


def test_files_and_folders_are_flushed_on_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "os", Windows())
    with new_folder(tmp_path / "new/1") as folder:
        (folder / "inner").mkdir()
        write_text(folder / "inner/file", "text")
    assert (tmp_path / "new/1/inner/file").read_text() == "text"


def test_a_litert_export_opens_where_no_temporary_folder_is_writable(lite):
    program = """
import sys, tempfile

def none():
    raise FileNotFoundError("no usable temporary directory")

tempfile.gettempdir = none
import tf_transformer as tt
print(tt.load(sys.argv[1])("Two doors."))
"""
    assert run_python(program, lite) == tt.load(lite)("Two doors.") + "\n"


SENTENCES = "".join(f"{n} doors, {n * n} tables and {n**3} chairs.\n" for n in range(99)).encode()
DOCUMENT = io.BytesIO()
with zipfile.ZipFile(DOCUMENT, "w") as archive:
    archive.writestr("word/document.xml", "<w:t>Two doors.</w:t>")
CODED = {
    "gzip": gzip.compress(b"Two doors.\n"),
    "bzip2": bz2.compress(b"Two doors.\n"),
    "bzip2 of nothing": bz2.compress(b""),
    "xz": lzma.compress(b"Two doors.\n"),
    "Zstandard": bytes.fromhex("28b52ffd240b59000054776f20646f6f72732e0a"),
    "LZ4": bytes.fromhex("04224d186440a70b00008054776f20646f6f72732e0a"),
    "a zip archive": b"PK\x03\x04" + bytes(26),
    "a zip archive of a .docx": DOCUMENT.getvalue(),
    "a 7z archive": b"7z\xbc\xaf\x27\x1c" + bytes(26),
    "a tar archive": tarfile.TarInfo("text.en").tobuf() + b"Two doors.\n",
    "a PDF": b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n",
    "Parquet": b"PAR1\x15\x04\x15\x1a\x15\x1eL\x15\x02\x15\0\x12\0\0\r0\n\0\0\0Two doors.",
    "binary data of .lzma": lzma.compress(SENTENCES, lzma.FORMAT_ALONE),
    "binary data of zlib": zlib.compress(SENTENCES),
    "binary data of raw zlib": zlib.compress(SENTENCES, wbits=-15),
    "binary data of .lz": b"LZIP\x01\x0c" + lzma.compress(SENTENCES, lzma.FORMAT_ALONE)[13:],
    "binary data of Arrow": b"ARROW1\0\0\xff\xff\xff\xffx\0\0\0\x10\0\0\0\0\0\n\0\x0c\0\x06\0\x05\0\x08\0\n\0\0\0",
    "binary data of .rar": b"Rar!\x1a\x07\0\xcf\x90s\0\0\r\0\0\0\0\0\0\0",
    "binary data of NumPy": b"\x93NUMPY\x01\0v\0{'descr': '<i4', 'fortran_order': False}\n" + bytes(range(60)),
    "binary data of UTF-16": SENTENCES.decode().encode("utf-16"),
    "binary data of big UTF-16": SENTENCES.decode().encode("utf-16-be"),
    "binary data of SQLite": b"SQLite format 3\0\x10\0\x01\x01\0@  \0\0\0\x02",
}


@pytest.mark.parametrize("kind", CODED)
@pytest.mark.parametrize("name", ["text.en", "text.bz2", "text.en.xz", "text"])
def test_compressed_files_are_not_read_as_text(kind, name, tmp_path):
    """Whatever their names."""
    (tmp_path / name).write_bytes(CODED[kind])
    for read in (lambda path: list(lines.lines_of(path)), lambda path: lines.open_text(path).__enter__()):
        with pytest.raises(
            tt.BadInput, match=rf"{name}: expected text, plain or \.gz, got {kind.partition(' of')[0]}\. \w+"
        ):
            read(tmp_path / name)
    with pytest.raises(tt.BadInput, match="text: expected text, plain or"):
        list(lines.lines_in(io.BytesIO(CODED[kind])))
    with pytest.raises(tt.BadInput, match=rf"{name}: expected text, plain or"):
        lines.read_range(lines.LineRange(str(tmp_path / name), 0, 0, 99))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(CODED[kind]))
    with pytest.raises(tt.BadInput, match=r"packed\.gz: expected text"):
        list(lines.lines_of(tmp_path / "packed.gz"))


LOOKING = [
    b"BZh is a name\n",
    b"PK 7\n",
    b"7z\n",
    b"",
    b"\xef\xbb\xbfa",
    b"\xff\xfe\n",
    b"ustar\n",
    b"\x1f\n",
    b"PAR1 a\n",
]
OTHERS = [
    "Две двери.\n".encode("cp1251") * 99,
    "ふたつのドア。\n".encode("euc-jp") * 99,
    "Où est la porte ?\n".encode("latin-1") * 99,
    b"a door\x0c\n" * 99,
    b"\x1b[31ma red door\x1b[0m\n" * 99,
    b"a \0 door\n" * 2 + SENTENCES,
    b"\0\n",
    "🚪\n".encode() * 500,
    ("x" + "é" * 600).encode(),
]


@pytest.mark.parametrize("text", LOOKING + OTHERS, ids=lambda text: repr(text[:12]))
def test_texts_that_only_look_compressed_are_read(text, tmp_path):
    """The first bad line of a text in another encoding has a number."""
    (tmp_path / "text").write_bytes(text)
    assert len(list(lines.lines_of(tmp_path / "text"))) == text.count(b"\n") + bool(text and not text.endswith(b"\n"))
