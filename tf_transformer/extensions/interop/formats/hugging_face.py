"""Export to a checkpoint for Hugging Face's `transformers`. Needs `pip install "tf-transformer[hub]"`.

A model of the paper becomes one of the nearest family. A fine-tuned model keeps its family. Weights and token ids
are the same. Its search differs, as docs/guides/transformers.md describes.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Literal

import keras
import ml_dtypes  # noqa: F401 (teaches NumPy bfloat16)
import numpy as np

from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.decoding.tensor_translator import TensorTranslator, padded
from tf_transformer.extensions.interop.families.hub import WEIGHTS
from tf_transformer.extensions.interop.families.marian import family as marian
from tf_transformer.extensions.interop.formats.checks import (
    check_convertible,
    check_layers,
    check_without_shortlist,
    only,
)
from tf_transformer.models.families import family_of_config, family_of_folder
from tf_transformer.tokenizers.strings import valid
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, FIRST_ID
from tf_transformer.utils import values
from tf_transformer.utils.files import new_folder, user_path, write_json, write_text
from tf_transformer.utils.folders import is_version
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.terminal import say
from tf_transformer.utils.version import __version__

DTYPES = ("float32", "bfloat16", "float16")
EPSILON = 1e-5  # epsilon of layer normalization in `transformers`
TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}  # difference of logits, relative to the largest
AT_ONCE = 64  # ids per text of a check
IN_CARD_ELSEWHERE = {"license", "languages", "n_best", "max_beam_size", "max_length", *LANGUAGES}


@values.checked
def save(
    translator: TensorTranslator,
    path: str | os.PathLike[str],
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    checked: bool = False,
    **metadata: Any,
) -> None:
    """Writes the directory of a checkpoint atomically.

    It holds config.json, generation_config.json, model.safetensors, the tokenizer's files, and README.md, the model
    card. `tt.load` also opens it.

    Args:
        translator: A `Translator` of one model.
        path: New directory.
        dtype: Dtype of the weights. `None` means the model's.
        checked: Whether to read the directory again and compare ids and logits.
        metadata: Metadata of the model card in addition to the translator's `export_options`, such as license,
            source_language, bleu and bleu_signature.

    Raises:
        BadInput: If the translator is an `Ensemble`, has int8 or non-finite weights, or computes what no model of
            `transformers` does, if a fact is neither text nor a number, or if safetensors is not installed.
        FileExistsError: If `path` exists.
    """
    model: Any = translator.model
    check_convertible(translator, ", as a checkpoint has it")
    check_without_shortlist(translator, "a checkpoint for `transformers`")
    safetensors = import_extra("safetensors.numpy", "hub", "this format")
    _check_settings(model)
    stored_in = model.dtype_policy.variable_dtype
    dtype = dtype or (stored_in if stored_in in DTYPES else "float32")
    metadata = {name: values.convert(name, fact, values.Fact) for name, fact in metadata.items()}
    metadata = translator.export_options | metadata
    languages = {name: metadata[name] for name in LANGUAGES if name in metadata and translator.tokenizer.languages}
    tokenizer = translator.tokenizer.with_languages(**languages)
    translator = translator.replace(model=model.merged(), tokenizer=tokenizer, export_options=metadata)
    family: Any = family_of_config(model.config)
    # The paper's models are written as checkpoints of MarianMT.
    tensors, files = (family.write or marian.write)(translator)
    files["config.json"]["dtype"] = dtype
    whole = user_path(path).absolute()
    title = whole.parent.name if is_version(whole.name) else whole.name
    with new_folder(path) as folder:
        # safetensors 0.8 writes transposed arrays as if they were not (safetensors/safetensors#825).
        stored = {name: np.ascontiguousarray(tensor, dtype) for name, tensor in tensors.items()}
        # Earlier versions of `transformers` reject files without this metadata.
        safetensors.save_file(stored, folder / WEIGHTS[0], {"format": "pt"})
        for file, content in files.items():
            if isinstance(content, bytes):
                (folder / file).write_bytes(content)
            else:
                write_json(folder / file, content)
        write_text(folder / "README.md", _card(translator, title))
        if checked:
            say("checking that it can be read ...")
            _check(folder, translator, TOLERANCE[dtype])


def _check_settings(model: Any) -> None:
    """Checks that one setting describes all layers, and that `transformers` has it."""
    check_layers(model)
    stacks = (model.encoder_layers, model.decoder_layers)
    activations = [layers[0].feed_forward.hidden.activation for layers in stacks]
    only("activation", [keras.activations.get(model.config.activation), *activations])
    for layers in stacks:
        only("d_ff", [layer.feed_forward.d_ff for layer in layers])
    if (epsilon := model.encoder_layers[0].feed_forward_norm.norm.epsilon) > EPSILON:
        raise BadInput(f"epsilon: expected at most {EPSILON}, which `transformers` has, got {epsilon}")


def _check(folder: Path, translator: TensorTranslator, tolerance: float) -> None:
    """Reads a checkpoint, and compares ids of texts that contain every token, and logits."""
    family: Any = family_of_folder(folder)
    read, tokenizer = family.load(folder), translator.tokenizer
    ids = range(FIRST_ID, tokenizer.vocab_size)
    decoded = tokenizer.decode([[*ids[first : first + AT_ONCE]] for first in range(0, len(ids), AT_ONCE)])
    # Without control characters, which SentencePiece treats differently there.
    texts = [valid(text) for text in decoded]
    tokenizers = [tokenizer, read.tokenizer]
    if languages := tokenizer.languages:
        tokenizers = [each.with_languages(languages[0], languages[-1]) for each in tokenizers]
    sources, targets = ([getattr(each, way)(texts) for each in tokenizers] for way in ("encode", "encode_target"))
    for ours, theirs in (sources, targets):
        for text, row, other in zip(texts, ours, theirs, strict=True):
            if row != other:
                message = f"expected the ids {row[:9]} ..., got a checkpoint that returns {other[:9]} ..."
                raise BadInput(f"{text[:50]!r}: {message}")
    sample = slice(len(texts) // 2, len(texts) // 2 + 2)
    source = padded([[*row, EOS_ID] for row in sources[0][sample]])
    target = padded([[BOS_ID, *row] for row in targets[0][sample]])
    expected, logits = (
        keras.ops.convert_to_numpy(model((source, target)))[target > 0][:, EOS_ID:]
        for model in (translator.model, read.model)
    )
    if (worst := np.abs(logits - expected).max() / np.abs(expected).max()) > tolerance:
        raise BadInput(f"logits: expected those of the model, got a checkpoint whose logits differ by {worst:.1%}")


def _card(translator: TensorTranslator, name: str) -> str:
    """Returns the text of README.md."""
    metadata, known, config = translator.export_options, translator.tokenizer.languages, translator.model.config
    pair = [str(metadata[side]) for side in LANGUAGES if metadata.get(side)]
    listed = [code.strip() for code in str(metadata.get("languages", "")).split(",") if code.strip()]
    origin = str(metadata.get("origin", ""))
    head = {
        "language": sorted({code.partition("_")[0] for code in known or pair or listed}),  # "eng" of "eng_Latn"
        "license": metadata.get("license"),
        "base_model": origin if "/" in origin else None,
        "library_name": "transformers",
        "pipeline_tag": "translation",
    }
    sizes = f"{config.num_layers} + {config.decoder_layers} layers, d_model={config.d_model}"
    between = f" between {len(known)} languages" if known else f" from {pair[0]} to {pair[1]}" if len(pair) == 2 else ""
    options = target = ""
    if known:
        languages: tuple[Any, ...] = (known[0], known[-1])
        # The translator may have no current languages.
        with contextlib.suppress(BadInput):
            languages = translator.tokenizer.current_languages()
        (token,) = translator.tokenizer.tokens([translator.tokenizer.language_ids[languages[1]]])
        options = f", src_lang={json.dumps(languages[0])}"
        target = f", forced_bos_token_id=tokenizer.convert_tokens_to_ids({json.dumps(token)})"
    table = {"made by": f"tf_transformer {__version__}"}
    table |= {key: value for key, value in metadata.items() if key not in IN_CARD_ELSEWHERE}
    cells = {key: str(value).replace("|", "\\|").replace("\n", " ") for key, value in table.items()}
    lines = [
        "---",
        *(f"{field}: {json.dumps(value)}" for field, value in head.items() if value),
        "---",
        "",
        f"# {name}",
        "",
        f"A Transformer that translates{between}: {sizes}, vocab_size={config.vocab_size}.",
        "",
        "```python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f"name = {json.dumps(name)}  # the directory, or the model's name on the hub",
        f"tokenizer = AutoTokenizer.from_pretrained(name{options})",
        "model = AutoModelForSeq2SeqLM.from_pretrained(name)",
        'batch = tokenizer(["The child sleeps."], padding=True, return_tensors="pt")',
        f"tokenizer.batch_decode(model.generate(**batch{target}), skip_special_tokens=True)",
        "```",
        "",
        "`tt.load` of tf_transformer also opens it.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {cell} |" for key, cell in cells.items()),
    ]
    return "\n".join(lines) + "\n"
