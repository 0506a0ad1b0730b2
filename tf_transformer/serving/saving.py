"""Writes, checks and reads the directory of a SavedModel."""

import datetime
import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_transformer import registry
from tf_transformer.config import BadInput
from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.decoding.shortlist import Shortlist
from tf_transformer.layers.int8 import policy_of
from tf_transformer.models.families import Rebuilt, build_model, check_weights, config_of, ensemble_of, tokenizer_of
from tf_transformer.models.transformer import Transformer
from tf_transformer.serving.contract import Root
from tf_transformer.serving.graphs import compact
from tf_transformer.utils import values
from tf_transformer.utils.files import new_folder, plainly_named, user_path
from tf_transformer.utils.folders import is_version, saved_model_of, size_of
from tf_transformer.utils.reading import check_kinds, read_bytes, read_json, reading
from tf_transformer.utils.terminal import say

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
BATCH_TIMEOUT_MICROS = 2000
QUEUED_BATCHES = 64
WARMUP_TOKENS = (5, 40)  # tokens of short and long rows
LIMITS = ("n_best", "max_beam_size", "max_length")  # options of an export
ORIGIN = ("origin", "commit", "license", "languages", "source_language", "target_language")  # metadata of a checkpoint


@values.checked
def save_export(export: Root, path: str | os.PathLike[str], checked: bool = False) -> None:
    """Writes the directory of a SavedModel, atomically:

        saved_model.pb, variables/, assets/, fingerprint.pb        TensorFlow's own
        batching_params.pbtxt                                      for a server with per-model batching parameters
        assets.extra/tf_transformer.json                           the configuration and the values of `model_info`
        assets.extra/tokenizer.model                               the tokenizer's attribute `model`
        assets.extra/tf_serving_warmup_requests                    requests that the server runs before it is ready

    Args:
        export: Export to write. Its name, version and time are added to `model_info`.
        path: New directory <name>/<integer version>, TensorFlow Serving's layout.
        checked: Whether to run the registered checks on the result. They open it in other processes, which takes long.

    Raises:
        BadInput: If the path has no version, or a check fails. Nothing is left behind.
        FileExistsError: If `path` exists.
    """
    path = user_path(path)
    if not is_version(path.name):
        raise BadInput(f"path: expected a directory <name>/<integer version>, since servers find no other, got {path}")
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    export.describe(name=path.absolute().parent.name, version=path.name, created=created)
    # A server loads a version as soon as it sees it, so a hidden directory is filled and then renamed.
    with new_folder(path) as folder:
        # Nodes of custom gradients, such as swish's, name tensors inside functions, which `compact` renames.
        saving = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(export, str(folder), signatures=export.signatures, options=saving)
        compact(folder)
        lines = [
            f"max_batch_size {{ value: {BATCH_SIZES[-1]} }}",  # the last allowed size, or the server does not load
            f"batch_timeout_micros {{ value: {BATCH_TIMEOUT_MICROS} }}",
            f"max_enqueued_batches {{ value: {QUEUED_BATCHES} }}",
            *(f"allowed_batch_sizes: {size}" for size in BATCH_SIZES),
        ]
        (folder / "batching_params.pbtxt").write_text("".join(f"{line}\n" for line in lines))
        extra = folder / "assets.extra"
        extra.mkdir()
        # Copied, since TensorFlow wraps the dicts of a `tf.Module`, which Python 3.13 does not take for dicts in JSON.
        description = {**export.metadata} | ({"config": {**export.config}, **export.family} if export.config else {})
        (extra / "tf_transformer.json").write_text(json.dumps(description, indent=2) + "\n")
        (extra / "tokenizer.model").write_bytes(export.tokenizer_model)
        with tf.io.TFRecordWriter(str(extra / "tf_serving_warmup_requests")) as file:
            for record in warmup_records(export):
                file.write(record)
        if checked:
            check_export(folder, path)


def check_export(folder: Path, path: str | os.PathLike[str]) -> None:
    """Raises `BadInput` if a directory, to be published as `path`, fails a check. It logs, since checks take long."""
    if not (checks := registry.everything("checks")):
        raise BadInput("checked: expected a check of exports, such as that of tf_transformer.extensions, found none")
    say("checking that it can be used ...")
    began, findings = time.monotonic(), [finding for check in checks.values() for finding in check(folder)]
    if failed := [finding for finding in findings if finding.level == "FAIL"]:
        listed = "".join(f"\n  {finding.level} {finding.message}" for finding in failed)
        raise BadInput(f"{path}: expected an export that passes the checks, so nothing was published:{listed}")
    say(f"{len(findings)} checks passed in {time.monotonic() - began:.0f} s")


def read_export(path: str | os.PathLike[str]) -> tuple[dict[str, Any], bytes, list[np.ndarray], list[np.ndarray]]:
    """Reads the metadata, the tokenizer's `model`, the weights, in the model's order, and the parts of a `Shortlist`.

    It does not load the graph.
    """
    path = saved_model_of(path)
    described = path / "assets.extra" / "tf_transformer.json"
    if not described.is_file():
        raise BadInput(f"{path}: expected a SavedModel of this package, found no {described.relative_to(path)}")
    metadata, tokenizer = read_json(described), read_bytes(described.with_name("tokenizer.model"))
    with reading(path, "a whole SavedModel of this package"):
        if (digest := hashlib.sha256(tokenizer).hexdigest()) != metadata["tokenizer"]:
            raise ValueError(f"tokenizer.model: expected the SHA-256 {metadata['tokenizer']}, got {digest}")
    with reading(path, "a whole SavedModel of this package"), plainly_named(path) as plain:
        stored = tf.train.load_checkpoint(str(plain / "variables" / "variables"))
        shapes = stored.get_variable_to_shape_map()
        # Before memory is allocated: a damaged index may claim any shape.
        shapes = {name: shape for name, shape in shapes.items() if name.startswith(("weights/", "shortlist/"))}
        if sum(map(math.prod, shapes.values())) > size_of(path / "variables"):
            raise ValueError("weights larger than their file")
        # The root's list `weights` numbers them, in the order of `model.weights`.
        names = sorted(shapes, key=lambda name: int(name.split("/")[1]))
        try:
            weights, shortlist = (
                [stored.get_tensor(name) for name in names if name.startswith(kind)]
                for kind in ("weights", "shortlist")
            )
            return metadata, tokenizer, weights, shortlist
        except IndexError as error:  # TensorFlow's reader raises it if a file is too short
            raise ValueError(str(error)) from error


def from_saved_model(path: str | os.PathLike[str]) -> Rebuilt:
    """Reads what `Translator.save` wrote: weights in their stored dtype, tokenizer and defaults."""
    # Not from the graph: it has operations and no layers. The configuration is stored next to it, for this.
    stored, tokenizer, weights, shortlist = read_export(path)
    expected, models = "an export that this version can read", list[Transformer]()
    with reading(path, expected):
        check_kinds(stored, dict.fromkeys(LIMITS, int))
        names = [name for name, option in SEARCH_OPTIONS.items() if "translator" in option.where and name in stored]
        options: dict[str, Any] = {name: SEARCH_OPTIONS[name].cast(stored[name]) for name in names}
        options |= {"shortlist": Shortlist(*shortlist)} if shortlist else {}
        check_kinds(stored, {"config": dict, "family": str, "dtype": str})
        config = config_of(stored["config"], stored.get("family"))
        keras.dtype_policies.get(policy_of(stored["dtype"]))  # raises for an unknown name
    # An ensemble stores the weights of its models one after the other.
    while weights or not models:
        with reading(path, expected):
            config.check_stored(sum(weight.nbytes for weight in weights))
        models.append(build_model(config, stored["dtype"]))
        size = len(models[-1].weights)
        check_weights(str(path), models[-1], weights[:size])
        with reading(path, expected):
            models[-1].set_weights(weights[:size])
        weights = weights[size:]
    # Saved again, the model keeps these, but not its scores, which may have been measured in another dtype.
    metadata = {name: stored[name] for name in (*LIMITS, *ORIGIN, "step") if name in stored}
    return Rebuilt(ensemble_of(models), tokenizer_of(tokenizer, stored.get("family")), options, metadata)


def warmup_records(export: Root) -> list[bytes]:
    """Returns warm-up requests for the signatures in `export.warm`: one row and a full batch, short and long texts."""
    records = []
    pieces = range(export.first_piece, export.vocab_size)
    for rows in (BATCH_SIZES[0], BATCH_SIZES[-1]):
        for tokens in WARMUP_TOKENS:
            # The language is unknown, so a text consists of subwords of the vocabulary.
            (text,) = export.decode([[pieces[i % len(pieces)] for i in range(tokens)]])
            for name, options in export.warm.items():
                # Every row has every option, since a server that merges requests needs them.
                inputs = {"text": [text.encode()] * rows}
                inputs |= {option: [value] * rows for option, value in options.items()}
                records.append(prediction_log(str(export.metadata["name"]), name, inputs))
    return records


def prediction_log(model: str, signature: str, inputs: dict[str, Any]) -> bytes:
    """Serializes a request as a `tensorflow.serving.PredictionLog`."""
    # By hand, so that exports do not need tensorflow-serving-api. The field numbers are from
    # tensorflow_serving/apis/{prediction_log,predict,model}.proto.

    def varint(number: int) -> bytes:
        low, rest = number & 127, number >> 7
        return bytes([low | 128]) + varint(rest) if rest else bytes([low])

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(content)) + content

    request = field(1, field(1, model.encode()) + field(3, signature.encode()))  # model_spec {name, signature_name}
    for name, value in inputs.items():
        tensor = tf.make_tensor_proto(value, tf.as_dtype(tf.constant(value).dtype))
        request += field(2, field(1, name.encode()) + field(2, tensor.SerializeToString(deterministic=True)))
    return field(6, field(1, request))  # predict_log {request}
