"""Damage a file at random, and read it as the package does:

    PYTHONPATH=. python tests/damaged.py KIND COUNT FOLDER

Each of COUNT files is read or refused in one line, by `BadInput` or `OSError`. A reader that takes a minute, or 2 GiB,
ends the process. With a seed as fourth argument it does again
what this seed did. Prints a line of JSON."""

import collections
import contextlib
import faulthandler
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
from tf_transformer.data.preparation import Preparation
from tf_transformer.data.records import Records
from tf_transformer.data.sources import ParquetSource, TextSource
from tf_transformer.extensions.interop.engines.litert import LiteRT
from tf_transformer.extensions.interop.engines.onnx_export import ONNX
from tf_transformer.extensions.parsing import treebank
from tf_transformer.models.families import load_tokenizer
from tf_transformer.serving.savedmodel import read_export
from tf_transformer.training.callbacks import Checkpoints
from tf_transformer.training.run import Run
from tf_transformer.utils.files import checksum

HERE = Path(__file__).parent
SECONDS, MEMORY = 60, 2**31
CONFIG = tt.TransformerConfig(1, 12, 17, 3, vocab_size=350)
FORTH = {"source_language": "en", "target_language": "de"}
SENTENCES = [text for text in TEXTS if isinstance(text, str) and len(text) < 100]
HOSTILE = [None, True, -1, 0, 1.5, 10**12, 10**30, 1e308, float("nan"), "", "16", "../x", "\ud800", "x" * 10**5, [], {}]
HOSTILE += [[[]] * 9, {"a": {}}, [10**12], ["x"], json.loads("[" * 500 + "]" * 500)]


# What is damaged


def flip(content, r):
    content = bytearray(content)
    for _ in range(r.choice([1, 1, 1, 8, 64])):
        content[r.randrange(len(content))] ^= 1 << r.randrange(8)
    return bytes(content)


def cut(content, r):
    return content[: r.randrange(len(content))]


def insert(content, r):
    place = r.randrange(len(content))
    return content[:place] + r.choice([r.randbytes(r.randint(1, 9)), b"\xff" * 8, b"\0" * 64]) + content[place:]


def swap(content, r):
    size = min(r.choice([1, 8, 64, 512]), len(content) // 2)
    first = r.randrange(len(content) - 2 * size + 1)
    second = r.randrange(first + size, len(content) - size + 1)
    parts = content[:first], content[second : second + size], content[first + size : second]
    return b"".join([*parts, content[first : first + size], content[second + size :]])


def fill(content, r):
    place, size = r.randrange(len(content)), r.choice([1, 4, 8, 100])
    return content[:place] + r.choice([b"\0", b"\xff", b"\x7f", b"9"]) * size + content[place + size :]


def hostile_value(content, r):
    """JSON with another value, or without one."""
    try:
        document = json.loads(content)
    except ValueError:
        return flip(content, r)
    places = []

    def visit(value):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, name))
            if isinstance(inner, dict | list) and inner:
                visit(inner)

    visit(document)
    place, name = r.choice(places)
    if r.random() < 0.15:
        del place[name]
    else:
        place[name] = r.choice(HOSTILE)
    return json.dumps(document).encode()


BYTES = [flip, cut, insert, swap, fill]


def damaged(content, r, is_json):
    ways = [*BYTES, hostile_value, hostile_value, hostile_value, hostile_value, hostile_value] if is_json else BYTES
    return r.choice(ways)(content, r)


# Who reads it. A maker gets an empty folder, fills it, and returns the reader.


def text_of(folder):
    tt.toy_corpus.write_corpus(folder / "text", train=60, dev=7, test=7)
    sides = [[str(folder / f"text/{split}.{side}") for side in ("en", "de")] for split in ("train", "dev")]
    return tt.TextCorpus(*sides)


def learned(folder):
    return text_of(folder).learn_tokenizer(350, "bpe")


def new_model():
    keras.utils.set_random_seed(5)
    model = tt.Transformer(CONFIG)
    model.build()
    model.compile(tt.Adam(1e-3), tt.SmoothedCrossEntropy(), metrics=[tt.TokenCount()])
    model.optimizer.build(model.trainable_variables)
    return model


def use(translator):
    """What a model answers, without a search, whose graph takes seconds."""
    tokenizer = translator.tokenizer
    ids = tokenizer.tokenize(SENTENCES)
    tokenizer.detokenize(ids), tokenizer.pieces(ids), tokenizer.source_pieces(ids)
    ids = ids[:2, :9].to_tensor()
    assert np.asarray(translator.model((ids, ids))).shape[-1] == translator.model.config.vocab_size


def run(folder):
    """A run with two checkpoints, loaded, and gone on with."""
    corpus, model, path = text_of(folder), new_model(), folder / "run"
    tokenizer = corpus.learn_tokenizer(350, "bpe")
    kept = Run(path)
    recipe = tt.Recipe(steps=2, batch_tokens=512).to_dict()
    settings = {"kind": "translation", "model": CONFIG.to_dict(), "recipe": recipe, "corpus": corpus.describe()}
    kept.begin(settings | {"start": {"origin": "x"}})
    tokenizer.save(path / "tokenizer.model")
    for step in (1, 2):
        kept.history.append({"step": step, "loss": 1.0})
        kept.save(model, step, target_tokens=7, seconds=1.0)
    facts = {"steps": 2, "parameters": model.count_params(), "test_bleu": 1.0, "test_bleu_signature": "x"}
    (path / "metrics.json").write_text(json.dumps(facts))

    def read():
        from trainers.publishing import measured

        use(tt.load(path))
        going_on = Run(path)
        if going_on.exists(settings):
            measured(going_on, 2, model.count_params())
        Checkpoints(path).restore(model)

    return read


def run_of_a_stranger(folder):
    """The same; the checksum of the weights is that of the damaged ones."""
    read, newest = run(folder), folder / "run/checkpoints/step-00000002"

    def read_them():
        state = json.loads((newest / "state.json").read_text())
        state["sha256"] = checksum(newest / "model.weights.h5")
        (newest / "state.json").write_text(json.dumps(state))
        read()

    return read_them


def ids(folder):
    corpus, path = text_of(folder), folder / "ids"
    batching = Batching(corpus.learn_tokenizer(350, "bpe"), 512, 1, folder=path)
    batches = corpus.batches(batching)
    corpus.keep_ids(batching, batches)
    summary = batches.summary()
    expected = summary.pairs, summary.source_tokens, summary.target_tokens

    def read():
        found = corpus.batches(batching).summary()  # how many were left out, a number of its own, may be damaged
        assert (found.pairs, found.source_tokens, found.target_tokens) == expected

    return read


def records(folder):
    tokenizer = learned(folder)
    source = TextSource(str(folder / "text/train.en"), str(folder / "text/train.de"))
    work = Preparation(source, folder / "records")
    work.run(source.parts(29, work.folder), tokenizer)

    def read():
        prepared = Records(folder / "records")
        batches = Batches(prepared.blocks(), 2048, 1)
        for number in range(len(batches)):
            assert batches[number].source.max() < 350

    return read


def records_on_the_way(folder):
    """Of which one shard is not whole."""
    records(folder)
    tokenizer = tt.Tokenizer.load(folder / "records/tokenizer.model")
    source = TextSource(str(folder / "text/train.en"), str(folder / "text/train.de"))
    work = Preparation(source, folder / "records")

    def read():
        work.run(source.parts(29, work.folder), tokenizer)
        Records(folder / "records")

    return read


def saved_model(folder):
    model, tokenizer = new_model(), learned(folder)
    tt.Translator(model, tokenizer).save(folder / "model/1", source_language="en")

    def read():
        read_export(folder / "model/1")
        use(tt.load(folder / "model/1"))

    return read


def litert(folder):
    model, tokenizer = new_model(), learned(folder)
    tt.Translator(model, tokenizer, max_source_length=13).save(folder / "lite/1", format="litert")

    def read():
        LiteRT(folder / "lite/1").n_best(["Two doors."], 2)

    return read


def onnx(folder):
    model, tokenizer = new_model(), learned(folder)
    tt.Translator(model, tokenizer, max_source_length=13).save(folder / "onnx/1", format="onnx")

    def read():
        ONNX(folder / "onnx/1").n_best(["Two doors."], 2)

    return read


def checkpoint(name, change=lambda folder: None, **options):
    """The maker of a checkpoint of `checkpoints.py`, changed."""

    def make(folder):
        MAKERS[name](folder / name)
        change(folder / name)
        return lambda: use(tt.Translator.from_pretrained(folder / name, **options))

    return make


def with_a_page(folder):
    head = "---\nlanguage:\n- en\n- de\nlicense: apache-2.0\ntags: [translation, &a x]\n---\n# Title\n"
    (folder / "README.md").write_text(head)


def as_nllb(folder):
    """Without vocab.json: the pieces are numbered as SentencePiece has them."""
    (folder / "vocab.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}')
    symbols = {"additional_special_tokens": ["eng_Latn", {"content": "deu_Latn"}]}
    (folder / "special_tokens_map.json").write_text(json.dumps(symbols))


def exported(checkpoint, **options):
    """The maker of the tokenizer of its export."""

    def make(folder):
        tokenizer = tt.Translator.from_pretrained(checkpoint, **options).tokenizer
        (folder / "tokenizer.model").write_bytes(tokenizer.model)

        def read():
            tokenizer = load_tokenizer(folder / "tokenizer.model")
            found = tokenizer.tokenize(SENTENCES)
            tokenizer.detokenize(found), tokenizer.pieces(found)

        return read

    return make


def trees(folder):
    tree = "(TOP (S (NP-SBJ (DT The) (NN cat)) (VP (VBD slept) (NP (-NONE- *))) (. .)))\n"
    (folder / "some.trees").write_text(tree * 20)
    return lambda: [treebank.as_line(tree) for tree in treebank.read_trees(folder / "some.trees")]


def packed_text(folder):
    corpus = text_of(folder)
    for side in ("en", "de"):
        content = (folder / f"text/train.{side}").read_bytes()
        (folder / f"text/train.{side}.gz").write_bytes(gzip.compress(content))
    files = [str(folder / f"text/train.{side}.gz") for side in ("en", "de")]
    dev = [str(folder / f"text/dev.{side}") for side in ("en", "de")]
    tokenizer = corpus.learn_tokenizer(350, "bpe")
    return lambda: tt.TextCorpus(files, dev, skip_bad_lines=True).batches(Batching(tokenizer, 512, 1))


def plain_text(folder):
    corpus = text_of(folder)
    tokenizer = corpus.learn_tokenizer(350, "bpe")
    files = [[str(folder / f"text/{split}.{side}") for side in ("en", "de")] for split in ("train", "dev")]
    return lambda: tt.TextCorpus(*files).batches(Batching(tokenizer, 512, 1))


def parquet(folder):
    import pyarrow
    import pyarrow.parquet

    rows = {"en": [f"sentence {i}" for i in range(300)], "de": [f"Satz {i}" for i in range(300)]}
    pyarrow.parquet.write_table(pyarrow.table(rows), folder / "some.parquet")
    source = ParquetSource(str(folder / "some.parquet"), ("en", "de"))
    return lambda: [pair for part in source.parts(70, folder) for pair in source.read(part)]


KINDS = {  # by name the maker, and the file
    "run's config": (run, "run/config.json"),
    "run's tokenizer": (run, "run/tokenizer.model"),
    "run's state": (run, "run/checkpoints/step-00000002/state.json"),
    "run's weights": (run, "run/checkpoints/step-00000002/model.weights.h5"),
    "run's metrics": (run, "run/metrics.json"),
    "stranger's weights": (run_of_a_stranger, "run/checkpoints/step-00000002/model.weights.h5"),
    "ids' key": (ids, "ids/shard.json"),
    "ids' tokens": (ids, "ids/target.npy"),
    "ids' starts": (ids, "ids/source_starts.npy"),
    "records' manifest": (records, "records/records.json"),
    "records' shard": (records, "records/shard-00001/target.npy"),
    "records' tokenizer": (records, "records/tokenizer.model"),
    "preparation's manifest": (records_on_the_way, "records/records.json"),
    "preparation's shard": (records_on_the_way, "records/shard-00001/shard.json"),
    "export's facts": (saved_model, "model/1/assets.extra/tf_transformer.json"),
    "export's tokenizer": (saved_model, "model/1/assets.extra/tokenizer.model"),
    "export's index": (saved_model, "model/1/variables/variables.index"),
    "export's variables": (saved_model, "model/1/variables/variables.data-00000-of-00001"),
    "LiteRT's facts": (litert, "lite/1/model.json"),
    "LiteRT's model": (litert, "lite/1/model.tflite"),
    "LiteRT's tokenizer": (litert, "lite/1/tokenizer.model"),
    "ONNX's facts": (onnx, "onnx/1/model.json"),
    "ONNX's model": (onnx, "onnx/1/model.onnx"),
    "ONNX's tokenizer": (onnx, "onnx/1/tokenizer.model"),
    "Marian's config": (checkpoint("marian"), "marian/config.json"),
    "Marian's vocabulary": (checkpoint("marian"), "marian/vocab.json"),
    "Marian's weights": (checkpoint("marian"), "marian/model.safetensors"),
    "Marian's generation": (checkpoint("marian"), "marian/generation_config.json"),
    "Marian's tokenizer": (checkpoint("marian"), "marian/tokenizer_config.json"),
    "Marian's source pieces": (checkpoint("marian"), "marian/source.spm"),
    "Marian's target pieces": (checkpoint("marian"), "marian/target.spm"),
    "Marian's page": (checkpoint("marian", with_a_page), "marian/README.md"),
    "Marian's index": (checkpoint("marian", in_several_files), "marian/model.safetensors.index.json"),
    "Marian's h5": (checkpoint("marian", in_h5), "marian/tf_model.h5"),
    "Marian's pickle": (checkpoint("marian", in_a_pickle), "marian/pytorch_model.bin"),
    "Marian's own decoder": (checkpoint("release"), "release/decoder.yml"),
    "Marian's own vocabulary": (checkpoint("release"), "release/*.yml"),
    "Marian's own weights": (checkpoint("release"), "release/*.npz"),
    "exported Marian's tokenizer": (exported(MARIAN), "tokenizer.model"),
    "M2M100's config": (checkpoint("m2m100", **FORTH), "m2m100/config.json"),
    "M2M100's vocabulary": (checkpoint("m2m100", **FORTH), "m2m100/vocab.json"),
    "M2M100's weights": (checkpoint("m2m100", **FORTH), "m2m100/model.safetensors"),
    "M2M100's pieces": (checkpoint("m2m100", **FORTH), "m2m100/sentencepiece.bpe.model"),
    "M2M100's tokenizer": (checkpoint("m2m100", **FORTH), "m2m100/tokenizer_config.json"),
    "NLLB's symbols": (checkpoint("m2m100", as_nllb), "m2m100/special_tokens_map.json"),
    "exported M2M100's tokenizer": (exported(M2M100, **FORTH), "tokenizer.model"),
    "trees": (trees, "some.trees"),
    "text": (plain_text, "text/train.de"),
    "packed text": (packed_text, "text/train.de.gz"),
    "Parquet": (parquet, "some.parquet"),
}
# Of these a damaged one may do no harm: it is made again, left out, or text like any other.
FORGIVING = ("ids' key", "ids' tokens", "ids' starts", "preparation's shard", "Marian's page", "Marian's tokenizer")
FORGIVING += ("Marian's generation", "text", "run's metrics")


def outcome(read):
    """What reading came to, in a word or a line."""
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
    found = [file for file in folder.glob(pattern) if file.name != "decoder.yml" or "decoder" in pattern]
    assert len(found) == 1, found
    file, whole = found[0], found[0].read_bytes()
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
        said = outcome(read)
        for path, content in others.items():
            path.write_bytes(content)
        file.write_bytes(whole)
        counts[said if said in ("works", "BadInput") or said.endswith("Error") else "wrong"] += 1
        if said not in ("works", "BadInput") and not (said.endswith("Error") and ":" not in said):
            wrong[seed] = said
    faulthandler.cancel_dump_traceback_later()
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps({"counts": counts, "wrong": wrong, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
