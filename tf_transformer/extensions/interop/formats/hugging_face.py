"""Export as a checkpoint that Hugging Face's `transformers` loads. Needs `pip install "tf-transformer[hub]"`.

A model of the paper becomes one of the family nearest to it; a fine-tuned model of a family stays one. Weights are the
same, and so are ids of texts. The search there is another: docs/guides/transformers.md says what differs.
"""

import os
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.text_model import TextModel, padded
from tf_transformer.extensions.interop.families.hub import WEIGHTS
from tf_transformer.extensions.interop.formats.model_card import card
from tf_transformer.extensions.interop.formats.parts import attentions, check_parts, norms, only
from tf_transformer.layers.int8 import is_int8
from tf_transformer.models.ensemble import Ensemble
from tf_transformer.models.families import family_of_config, family_of_folder
from tf_transformer.models.transformer import check_finite
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.tokenizers.strings import valid
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID
from tf_transformer.utils import values
from tf_transformer.utils.extras import import_extra
from tf_transformer.utils.files import new_folder, user_path, write_json, write_text
from tf_transformer.utils.folders import is_version
from tf_transformer.utils.terminal import say

DTYPES = ("float32", "bfloat16", "float16")
EPSILON = 1e-5  # of layer normalization there
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}  # of logits, beside the greatest
AT_ONCE = 64  # ids of a text that a check makes


@values.checked
def save(
    translator: TextModel,
    path: str | os.PathLike[str],
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    checked: bool = False,
    **facts: Any,
) -> None:
    """Write the folder of a checkpoint, whole or not at all.

    It holds config.json, generation_config.json, model.safetensors, the files of the tokenizer, and README.md, the
    model's card. `tt.load` opens it, too.

    Args:
        translator: a `Translator` of one model.
        path: must not exist.
        dtype: of the weights; `None` means the model's.
        checked: read the folder again, and compare ids and logits.
        facts: what the card says beside the translator's `export_options`, such as license, source_language, bleu and
            bleu_signature.

    Raises:
        BadInput: the translator is an `Ensemble`, has weights in int8 or weights that are not finite, or computes what
            no model of `transformers` does; a fact is neither text nor a number; or safetensors is not installed.
        FileExistsError: path exists.
    """
    model: Any = translator.model
    if isinstance(model, Ensemble):
        raise BadInput(
            f"translator: expected one model, as a checkpoint has it, got an ensemble of {len(model.models)}"
        )
    if is_int8(model):
        raise BadInput("translator: expected weights of 16 or 32 bits, which `transformers` reads, got int8")
    safetensors = import_extra("safetensors.numpy", "hub", "this format")
    check_finite(model.weights)
    _check_layers(model)
    stored_in = model.dtype_policy.variable_dtype
    dtype = dtype or (stored_in if stored_in in DTYPES else "float32")
    known = translator.export_options | {name: values.convert(name, fact, values.Fact) for name, fact in facts.items()}
    given = {name: known[name] for name in LANGUAGES if name in known and translator.tokenizer.languages}
    tokenizer = translator.tokenizer.for_languages(**given)
    translator = translator.replace(model=model.merged(), tokenizer=tokenizer, export_options=known)
    family: Any = family_of_config(model.config)
    tensors, files = family.write(translator)
    files["config.json"]["dtype"] = dtype
    whole = user_path(path).absolute()
    title = whole.parent.name if is_version(whole.name) else whole.name
    with new_folder(path) as folder:
        stored = {name: np.ascontiguousarray(_as(tensor, dtype)) for name, tensor in tensors.items()}
        safetensors.save_file(stored, folder / WEIGHTS[0], {"format": "pt"})
        for file, content in files.items():
            if isinstance(content, bytes):
                (folder / file).write_bytes(content)
            else:
                write_json(folder / file, content)
        write_text(folder / "README.md", card(translator, title))
        if checked:
            say("checking that it can be read ...")
            _check(folder, translator, TOLERANCE[dtype])


def _as(tensor: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        import ml_dtypes  # a dependency of TensorFlow and Keras

        return tensor.astype(ml_dtypes.bfloat16)
    return tensor.astype(dtype)


def _check_layers(model: Any) -> None:
    """Check that one setting can say what all layers do, and that `transformers` has it.

    Raises:
        BadInput: it is not so.
    """
    check_parts(model)
    layers = [*model.encoder_layers, *model.decoder_layers]
    activations = [layer.feed_forward.hidden.activation for layer in layers]
    only("activation", [keras.activations.get(model.config.activation), *activations])
    only("norm_first", [model.config.norm_first, *(layer.norm_first for layer in layers)])
    for stack in (model.encoder_layers, model.decoder_layers):
        only("num_heads", [part.num_heads for layer in stack for part in attentions(layer)])
        only("d_ff", [layer.feed_forward.d_ff for layer in stack])
    epsilon = only("epsilon", [norm.norm.epsilon for layer in layers for norm in norms(layer)])
    if epsilon > EPSILON:
        raise BadInput(f"epsilon: expected at most {EPSILON}, which `transformers` has, got {epsilon}")


def _check(folder: Path, translator: TextModel, tolerance: float) -> None:
    """Read a folder, and compare ids and logits of texts that have every piece.

    Raises:
        BadInput: they differ.
    """
    family: Any = family_of_folder(folder)
    read, own = family.load(folder), translator.tokenizer
    ids = range(FIRST_ID, own.vocab_size)
    decoded = own.decode([[*ids[first : first + AT_ONCE]] for first in range(0, len(ids), AT_ONCE)])
    texts = [valid(text) for text in decoded]  # what it does to control characters is SentencePiece's there
    tokenizers = [own, read.tokenizer]
    if languages := own.languages:
        tokenizers = [tokenizer.for_languages(languages[0], languages[-1]) for tokenizer in tokenizers]
    sources, targets = ([getattr(each, way)(texts) for each in tokenizers] for way in ("encode", "encode_target"))
    for ours, theirs in (sources, targets):
        for text, row, other in zip(texts, ours, theirs, strict=True):
            if row != other:
                raise BadInput(
                    f"{text[:50]!r}: expected the ids {row[:9]} ..., got a checkpoint that gives {other[:9]} ..."
                )
    some = slice(len(texts) // 2, len(texts) // 2 + 2)
    source = padded([[*row, EOS_ID] for row in sources[0][some]])
    target = padded([[BOS_ID, *row] for row in targets[0][some]])
    expected, found = (
        keras.ops.convert_to_numpy(model((source, target)))[target > 0][:, EOS_ID:]
        for model in (translator.model, read.model)
    )
    if (worst := np.abs(found - expected).max() / np.abs(expected).max()) > tolerance:
        raise BadInput(f"logits: expected those of the model, got a checkpoint whose logits differ by {worst:.1%}")
