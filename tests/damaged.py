"""Damages a file at random, and reads it as the package does:

    PYTHONPATH=. python tests/damaged.py KIND COUNT FOLDER

Each of COUNT files must be read, or raise `BadInput` or `OSError` of one line. A reader that takes a minute, or 2 GiB,
ends the process. A fourth argument repeats one seed. Prints JSON."""

import collections
import contextlib
import dataclasses
import faulthandler
import functools
import gzip
import io
import json
import random
import resource
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
from checkpoints import M2M100, MAKERS, MARIAN, in_a_pickle, in_h5, in_several_files
from hostile import TEXTS

import tf_transformer as tt
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching
from tf_transformer.extensions.interop.engines.portable import ONNX, LiteRT
from tf_transformer.extensions.parsing import treebank
from tf_transformer.extensions.records.preparation import Preparation
from tf_transformer.extensions.records.records import Records
from tf_transformer.extensions.sources import ParquetSource, TextSource
from tf_transformer.models.families import load_tokenizer
from tf_transformer.training.callbacks import Checkpoints
from tf_transformer.training.run import Run
from tf_transformer.utils.files import checksum

HERE = Path(__file__).parent
sys.path.append(str(HERE / "extensions/interop"))  # where `checkpoints.py` finds the writer of native models
SECONDS, MEMORY = 60, 2**31
CONFIG = tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)
FORTH = {"source_language": "en", "target_language": "de"}
SENTENCES = [text for text in TEXTS if isinstance(text, str) and len(text) < 100]
HOSTILE = [None, True, -1, 0, 1.5, 10**12, 10**30, 1e308, float("nan"), "", "16", "../x", "\ud800", "x" * 10**5, [], {}]
HOSTILE += [[[]] * 9, {"a": {}}, [10**12], ["x"], json.loads("[" * 500 + "]" * 500)]


def damaged(content, r, is_json):
    """Returns the content with a random damage: JSON mostly with another value, other files with other bytes."""
    if is_json and r.random() < 0.5:
        with contextlib.suppress(ValueError):
            return hostile_value(json.loads(content), r)
    position = r.randrange(len(content))
    match r.choice(["flip", "cut", "insert", "swap", "fill"]):
        case "flip":
            flipped = bytearray(content)
            for _ in range(r.choice([1, 1, 1, 8, 64])):
                flipped[r.randrange(len(content))] ^= 1 << r.randrange(8)
            return bytes(flipped)
        case "cut":
            return content[:position]
        case "insert":
            inserted = r.choice([r.randbytes(r.randint(1, 9)), b"\xff" * 8, b"\0" * 64])
            return content[:position] + inserted + content[position:]
        case "swap":
            size = min(r.choice([1, 8, 64, 512]), len(content) // 2)
            first = r.randrange(len(content) - 2 * size + 1)
            second = r.randrange(first + size, len(content) - size + 1)
            between, end = content[first + size : second], content[second + size :]
            return content[:first] + content[second : second + size] + between + content[first : first + size] + end
        case _:
            size = r.choice([1, 4, 8, 100])
            return content[:position] + r.choice([b"\0", b"\xff", b"\x7f", b"9"]) * size + content[position + size :]


def hostile_value(document, r):
    """Returns JSON with another value, or without one."""
    slots = []

    def visit(value):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            slots.append((value, name))
            if isinstance(inner, dict | list) and inner:
                visit(inner)

    visit(document)
    container, name = r.choice(slots)
    if r.random() < 0.15:
        del container[name]
    else:
        container[name] = r.choice(HOSTILE)
    return json.dumps(document).encode()


# Makers fill an empty folder and return its reader.


def text_of(folder):
    """Writes the toy corpus and returns it, with its files and a tokenizer."""
    tt.toy_corpus.write_corpus(folder / "text", train=60, dev=7, test=7)
    train, dev = ([str(folder / f"text/{split}.{side}") for side in ("en", "de")] for split in ("train", "dev"))
    corpus = tt.TextCorpus(train, dev)
    return corpus, train, dev, corpus.train_tokenizer(350, "bpe")


def new_model():
    keras.utils.set_random_seed(5)
    model = tt.Transformer(CONFIG)
    model.build()
    model.compile(tt.Adam(1e-3), tt.SmoothedCrossEntropy(), metrics=[tt.TokenCount()])
    model.optimizer.build(model.trainable_variables)
    return model


def use(translator):
    """Runs a model without a search, whose graph takes seconds."""
    tokenizer = translator.tokenizer
    ids = tokenizer.tokenize(SENTENCES)
    tokenizer.detokenize(ids), tokenizer.pieces(ids), tokenizer.source_pieces(ids)
    ids = ids[:2, :9].to_tensor()
    assert np.asarray(translator.model((ids, ids))).shape[-1] == translator.model.config.vocab_size


def run(folder):
    """Loads and resumes a run with two checkpoints."""
    corpus, _, _, tokenizer = text_of(folder)
    model, path = new_model(), folder / "run"
    stored = Run(path)
    recipe = tt.Recipe(steps=2, batch_tokens=512).to_dict()
    settings = {"kind": "translation", "model": CONFIG.to_dict(), "recipe": recipe, "corpus": corpus.describe()}
    stored.begin(settings | {"start": {"origin": "x"}})
    tokenizer.save(path / "tokenizer.model")
    for step in (1, 2):
        stored.history.append({"step": step, "loss": 1.0})
        stored.save(model, step, target_tokens=7, seconds=1.0)
    metadata = {"steps": 2, "parameters": model.count_params(), "test_bleu": 1.0, "test_bleu_signature": "x"}
    (path / "metrics.json").write_text(json.dumps(metadata))

    def read():
        from trainers.publishing import measured

        use(tt.load(path))
        resumed = Run(path)
        if resumed.exists(settings):
            measured(resumed, 2, model.count_params())
        Checkpoints(path).restore(model)

    return read


def run_with_matching_checksum(folder):
    """Loads a run whose stored checksum matches the damaged weights."""
    read, newest = run(folder), folder / "run/checkpoints/step-00000002"

    def read_them():
        state = json.loads((newest / "state.json").read_text())
        state["sha256"] = checksum(newest / "model.weights.h5")
        (newest / "state.json").write_text(json.dumps(state))
        read()

    return read_them


def ids(folder):
    corpus, _, _, tokenizer = text_of(folder)
    batching = Batching(tokenizer, 512, 1, folder=folder / "ids")
    batches = corpus.batches(batching)
    corpus.keep_ids(batching, batches)
    expected = dataclasses.replace(batches.summary(), skipped=0)

    def read():
        # The number of skipped pairs is not in the checksums.
        assert dataclasses.replace(corpus.batches(batching).summary(), skipped=0) == expected

    return read


def records(folder, unfinished=False):
    """Reads records, after finishing them if they are `unfinished` and a shard is damaged."""
    _, train, _, tokenizer = text_of(folder)
    source = TextSource(*train)
    work = Preparation(source, folder / "records")
    work.run(source.parts(29, work.folder), tokenizer)

    def read():
        if unfinished:
            work.run(source.parts(29, work.folder), tokenizer)
        batches = Batches(Records(folder / "records").blocks(), 2048, 1)
        for index in range(len(batches)):
            assert batches[index].source.max() < 350

    return read


def saved_model(folder):
    tt.Translator(new_model(), text_of(folder)[-1]).save(folder / "model/1", source_language="en")

    def read():
        tt.load(folder / "model/1")
        use(tt.Translator.from_pretrained(folder / "model/1"))

    return read


def portable(format, engine):
    """Returns the maker of a LiteRT or an ONNX export."""

    def make(folder):
        translator = tt.Translator(new_model(), text_of(folder)[-1], max_source_length=13)
        translator.save(folder / "1", format=format)
        return lambda: engine(folder / "1").n_best(["Two doors."], 2)

    return make


def checkpoint(name, change=lambda folder: None, **options):
    """Returns the maker of a checkpoint of `checkpoints.py`, changed."""

    def make(folder):
        MAKERS[name](folder / name)
        change(folder / name)
        return lambda: use(tt.Translator.from_pretrained(folder / name, **options))

    return make


def with_a_page(folder):
    head = "---\nlanguage:\n- en\n- de\nlicense: apache-2.0\ntags: [translation, &a x]\n---\n# Title\n"
    (folder / "README.md").write_text(head)


def as_nllb(folder):
    """Removes vocab.json, so that the pieces have SentencePiece's numbers."""
    (folder / "vocab.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}')
    tokens = {"additional_special_tokens": ["eng_Latn", {"content": "deu_Latn"}]}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))


def exported(checkpoint, **options):
    """Returns the maker of the tokenizer of a checkpoint's export."""

    def make(folder):
        tokenizer = tt.Translator.from_pretrained(checkpoint, **options).tokenizer
        (folder / "tokenizer.model").write_bytes(tokenizer.model)

        def read():
            tokenizer = load_tokenizer(folder / "tokenizer.model")
            ids = tokenizer.tokenize(SENTENCES)
            tokenizer.detokenize(ids), tokenizer.pieces(ids)

        return read

    return make


def trees(folder):
    tree = "(TOP (S (NP-SBJ (DT The) (NN cat)) (VP (VBD slept) (NP (-NONE- *))) (. .)))\n"
    (folder / "some.trees").write_text(tree * 20)
    return lambda: [treebank.as_line(tree) for tree in treebank.read_trees(folder / "some.trees")]


def text(folder, packed=False):
    """Reads plain or packed text. Bad lines of packed text are skipped."""
    _, train, dev, tokenizer = text_of(folder)
    if packed:
        for file in train:
            Path(f"{file}.gz").write_bytes(gzip.compress(Path(file).read_bytes()))
        train = [f"{file}.gz" for file in train]
    return lambda: tt.TextCorpus(train, dev, skip_bad_lines=packed).batches(Batching(tokenizer, 512, 1))


def parquet(folder):
    import pyarrow
    import pyarrow.parquet

    rows = {"en": [f"sentence {i}" for i in range(300)], "de": [f"Satz {i}" for i in range(300)]}
    pyarrow.parquet.write_table(pyarrow.table(rows), folder / "some.parquet")
    source = ParquetSource(str(folder / "some.parquet"), ("en", "de"))
    return lambda: [pair for part in source.parts(70, folder) for pair in source.read(part)]


marian, m2m100 = checkpoint("marian"), checkpoint("m2m100", **FORTH)
STEP = "run/checkpoints/step-00000002"
MADE = {  # maker, and files to damage, one in each test, by name
    "run": (run, f"run/config.json run/tokenizer.model {STEP}/state.json {STEP}/model.weights.h5 run/metrics.json"),
    "checked run": (run_with_matching_checksum, f"{STEP}/model.weights.h5"),
    "ids": (ids, "ids/shard.json ids/target.npy ids/source_starts.npy"),
    "records": (records, "records/records.json records/shard-00001/target.npy records/tokenizer.model"),
    "preparation": (functools.partial(records, unfinished=True), "records/records.json records/shard-00001/shard.json"),
    "export's": (saved_model, "model/1/assets.extra/tf_transformer.json model/1/assets.extra/tokenizer.model"),
    "export": (saved_model, "model/1/variables/variables.index model/1/variables/variables.data-00000-of-00001"),
    "LiteRT": (portable("litert", LiteRT), "1/model.json 1/model.tflite 1/tokenizer.model"),
    "ONNX": (portable("onnx", ONNX), "1/model.json 1/model.onnx 1/tokenizer.model"),
    "Marian": (marian, "marian/config.json marian/model.safetensors marian/generation_config.json"),
    "Marian's": (marian, "marian/vocab.json marian/tokenizer_config.json marian/source.spm marian/target.spm"),
    "Marian's page": (checkpoint("marian", with_a_page), "marian/README.md"),
    "Marian's index": (checkpoint("marian", in_several_files), "marian/model.safetensors.index.json"),
    "Marian's h5": (checkpoint("marian", in_h5), "marian/tf_model.h5"),
    "Marian's pickle": (checkpoint("marian", in_a_pickle), "marian/pytorch_model.bin"),
    "native Marian": (checkpoint("release"), "release/decoder.yml release/*.yml release/*.npz"),
    "exported Marian": (exported(MARIAN), "tokenizer.model"),
    "M2M100": (m2m100, "m2m100/config.json m2m100/vocab.json m2m100/model.safetensors m2m100/tokenizer_config.json"),
    "M2M100's": (m2m100, "m2m100/sentencepiece.bpe.model"),
    "NLLB": (checkpoint("m2m100", as_nllb), "m2m100/special_tokens_map.json"),
    "exported M2M100": (exported(M2M100, **FORTH), "tokenizer.model"),
    "trees": (trees, "some.trees"),
    "text": (text, "text/train.de"),
    "packed text": (functools.partial(text, packed=True), "text/train.de.gz"),
    "Parquet": (parquet, "some.parquet"),
}
KINDS = {f"{name} {Path(path).name}": (make, path) for name, (make, paths) in MADE.items() for path in paths.split()}
# A damaged file of these may be rebuilt, ignored, or read like any other text.
FORGIVING = ("ids shard.json", "ids target.npy", "ids source_starts.npy", "preparation shard.json")
FORGIVING += ("Marian's page README.md", "Marian's tokenizer_config.json", "Marian generation_config.json")
FORGIVING += ("text train.de", "run metrics.json")
assert set(FORGIVING) <= KINDS.keys() and len(KINDS) == 50


def outcome(read):
    """Returns the result of reading as a word or a short text."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            read()
    except (tt.BadInput, OSError) as error:
        lines = str(error).splitlines()
        return type(error).__name__ if len(lines) == 1 and lines[0].strip() else f"not one line: {lines[:3]}"
    except BaseException as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "works"


def main():
    kind, count, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    seeds = range(int(sys.argv[4]), int(sys.argv[4]) + 1) if len(sys.argv) > 4 else range(count)
    warnings.simplefilter("ignore")
    make, pattern = KINDS[kind]
    read = make(folder)
    files = [file for file in folder.glob(pattern) if file.name != "decoder.yml" or "decoder" in pattern]
    assert len(files) == 1, files
    file, whole = files[0], files[0].read_bytes()
    assert outcome(read) == "works", outcome(read)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts, wrong = collections.Counter(), {}
    for seed in seeds:
        (folder / "seed").write_text(str(seed))
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        damage = damaged(whole, random.Random(seed), file.suffix == ".json")
        others = {path: path.read_bytes() for path in file.parent.glob("*.json")}
        file.write_bytes(damage)
        result = outcome(read)
        for path, content in others.items():
            path.write_bytes(content)
        file.write_bytes(whole)
        is_right = result in ("works", "BadInput") or (result.endswith("Error") and ":" not in result)
        counts[result if is_right else "wrong"] += 1
        if not is_right:
            wrong[seed] = result
    faulthandler.cancel_dump_traceback_later()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"counts": counts, "wrong": wrong, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
