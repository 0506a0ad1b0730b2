"""Checkpoints for tests: copies of the trained ones, with changes, and with their weights in other files."""

import functools
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

HERE = Path(__file__).parent
MARIAN, M2M100 = HERE / "marian/trained", HERE / "m2m100/trained"


def copied(source, folder, drop=(), tensors=None, **config):
    """Copies a checkpoint without some tensors, with additional ones, and with other settings."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*config.json", "vocab.json", "*.spm", "*.model", "*.safetensors"):
        for file in source.glob(pattern):
            shutil.copy(file, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | config))
    if drop or tensors:
        changed = tensors_of(folder) | (tensors or {})
        save_file({name: changed[name] for name in changed if name not in drop}, folder / "model.safetensors")
    return folder


def tensors_of(folder):
    """Returns the tensors and deletes their file."""
    from safetensors.numpy import load_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return tensors


def in_several_files(folder, dtype=None):
    from safetensors.numpy import save_file

    tensors = {name: tensor.astype(dtype or tensor.dtype) for name, tensor in tensors_of(folder).items()}
    files = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def in_h5(folder, leaf="weight"):
    """Renames the tensors as TFMarianMTModel of transformers 4 does."""
    import h5py

    with h5py.File(folder / "tf_model.h5", "w") as file:
        for name, value in tensors_of(folder).items():
            *parents, last = name.split(".")
            if name == "final_logits_bias":
                path = "final_logits_bias/final_logits_bias"
            elif name == "model.shared.weight":
                path = f"model/model.shared/model.shared/{leaf}"
            else:
                side, _, number, *rest = parents[1:]
                norm = rest[-1].endswith("_norm")
                last = {"weight": "gamma" if norm else "kernel", "bias": "beta" if norm else "bias"}[last]
                value = value.T if last == "kernel" else value
                path = "/".join(["model/tf_marian_mt_model/model", side, f"layers.{number}", *rest, last])
            file[f"{path}:0"] = value
        file[f"model/tf_marian_mt_model/model/encoder/embed_positions/{leaf}:0"] = np.zeros((64, 12))


def in_a_pickle(folder):
    """With the table under all of its names, and with sinusoids."""
    import torch

    tensors = tensors_of(folder)
    table = tensors["model.shared.weight"]
    tensors |= {"lm_head.weight": table, "model.encoder.embed_tokens.weight": table}
    tensors["model.encoder.embed_positions.weights"] = np.zeros((66, 24))
    torch.save({name: torch.tensor(value) for name, value in tensors.items()}, folder / "pytorch_model.bin")


def separate(folder):
    runpy.run_path(str(MARIAN.parent / "separate.py"))["split"](folder)


def release(folder):
    from test_marian_native import write_release

    write_release(folder)


def nllb(folder):
    from matrix import m2m100_nllb

    m2m100_nllb(None, folder)


MAKERS = {
    "marian": functools.partial(copied, MARIAN),
    "separate": separate,
    "release": release,
    "m2m100": functools.partial(copied, M2M100),
    "nllb": nllb,
}


def by_ctranslate2(model, folder, sentences, beam_size, languages=()):
    """Returns the best outputs of CTranslate2 and their log-probabilities. `folder` holds SentencePiece's models. A
    sentence for MarianMT begins with a code and a space, or a space."""
    engine = pytest.importorskip("ctranslate2").Translator(str(model), intra_threads=1, compute_type="float32")
    names = ["sentencepiece.bpe.model"] * 2 if languages else ["source.spm", "target.spm"]
    source, target = (sentencepiece.SentencePieceProcessor(model_file=str(folder / name)) for name in names)
    first, begin = ([f"__{code}__"] for code in languages) if languages else ([], [])
    rows = []
    for sentence in sentences:
        code, text = ("", sentence) if languages else sentence.split(" ", 1)
        rows.append([*first, *[code] * (code != ""), *source.encode(text, out_type=str)])
    options = {"beam_size": beam_size, "length_penalty": 0, "min_decoding_length": 0, "return_scores": True}
    results = engine.translate_batch(rows, target_prefix=[begin] * len(rows), **options)
    texts = [target.decode(result.hypotheses[0][len(begin) :]).replace(" \u2047 ", "") for result in results]
    return texts, [result.scores[0] for result in results]  # the mark is SentencePiece's unknown token
