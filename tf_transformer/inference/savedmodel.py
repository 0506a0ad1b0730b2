"""Runs the graph of a SavedModel from Python."""

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.inference.engine import UNUSED, Engine, Hypothesis, Request, TranslationResult, warn_of_saturation
from tf_transformer.inference.words import Aligned
from tf_transformer.tokenizers.strings import check_tensorflow_text, truncate_texts
from tf_transformer.utils.files import encoded, plainly_named
from tf_transformer.utils.folders import saved_model_of
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.reading import check_kinds, read_json, reading
from tf_transformer.utils.terminal import quiet_stderr
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import MOST, BadInput, Count, between, checked

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a SavedModel")

DESCRIBED = "assets.extra/tf_transformer.json"
UNKNOWN_OPERATION = "Op type not registered"  # begins TensorFlow's message
OTHERWISE = "Install the TensorFlow and the libraries that it was saved with"
# macOS's wheel of TensorFlow is built without oneDNN, whose operation it is.
MISSING = {"_QuantizedMatMul": "Without oneDNN, as on macOS, export it in float32, or in int8 to LiteRT or ONNX"}


def load_graph(address: str) -> Any:
    """Returns the object from `tf.saved_model.load`. Raises `BadInput` if the directory holds something else."""
    check_tensorflow_text()
    with contextlib.nullcontext(address) if "://" in address else plainly_named(Path(address)) as plain:
        try:
            with quiet_stderr():  # SentencePiece warns of models without normalization
                return tf.saved_model.load(str(plain))
        except Exception as error:  # A damaged file can make TensorFlow raise any error, such as IndexError.
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            if unknown := re.search(f"{UNKNOWN_OPERATION} '([^']+)'", reason):
                name = unknown[1]
                message = f"{address}: expected a SavedModel whose operations this TensorFlow has, got one with {name}"
                raise BadInput(f"{message}. {MISSING.get(name, OTHERWISE)}.") from error
            message = f"{address}: expected a SavedModel that TensorFlow opens, got something else: {reason}"
            raise BadInput(message) from error


class SavedModel(Engine):
    """SavedModel of a translator, or another whose `serving_default` takes and returns text.

    A tagger returns the labels of the words, joined by spaces.

    Args:
        path: Directory that holds saved_model.pb, or that of its versions, of which the newest is loaded. Or an address
            such as gs://bucket/model/1.
        batch_size: Maximum number of texts per batch. They are sorted by length first. Long ones have smaller
            batches.
        threads: Threads per operation, set before TensorFlow's first one in a process. `None` means all cores.
        options: Default search options and languages of calls.

    Attributes:
        loaded: Object from `tf.saved_model.load`. It owns the variables of the signatures.

    Raises:
        BadInput: If the directory holds something else, or an option is out of range.
    """

    parallel = "threads"
    calls = 2  # A call has several threads.

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: Count = 32,
        threads: Annotated[int, between(1, 1_024)] | None = None,
        **options: Any,
    ) -> None:
        check_tensorflow_text()  # before the path, which may be right
        if threads:
            with contextlib.suppress(RuntimeError):  # TensorFlow already runs
                tf.config.threading.set_intra_op_parallelism_threads(threads)
        address = os.fspath(path).rstrip("/") if "://" in os.fspath(path) else str(saved_model_of(path))
        self.loaded = load_graph(address)
        self.batch_size = batch_size
        absolute = address if "://" in address else os.path.abspath(address)
        self._opened: dict[str, Any] = {"path": absolute, "threads": threads}
        # It may be from elsewhere, so what it can do is read off its signatures and not off our metadata.
        signatures = self.loaded.signatures
        default = signatures.get("serving_default")
        inputs = {name: spec.dtype for name, spec in default.structured_input_signature[1].items()} if default else {}
        outputs = default.structured_outputs if default else {}
        strings = [name for name, spec in outputs.items() if spec.dtype == tf.string and spec.shape.rank in (1, None)]
        if set(strings) == {"words", "labels"}:  # a tagger's, both joined by spaces
            strings = ["labels"]
        if inputs != {"text": tf.string} or len(strings) != 1:
            raise BadInput(
                f"{address}: expected a SavedModel whose serving_default returns one string for `text`, got "
                f"{len(strings)} for {', '.join(inputs) or 'nothing'}. "
                "Import tensorflow_text and call tf.saved_model.load"
            )
        (self._text,) = strings
        inputs = signatures["translate"].structured_input_signature[1] if "translate" in signatures else {}
        self.call_options = tuple(name for name in SEARCH_OPTIONS if name in inputs)
        # All exports of this package have `model_info`, and those of other tasks have other signatures.
        self.translates = "translate" in signatures or "model_info" not in signatures
        self.aligns = {"translate_details", "tokenize", "detokenize"} <= signatures.keys()
        limits = {"beam_size": "max_beam_size", "max_length": "max_length", "n_best": "n_best"}
        with reading(address, "an export of this package, by its tf_transformer.json"):
            self._metadata: dict[str, Any] = {}  # A SavedModel from elsewhere has none.
            described_at = f"{address}/{DESCRIBED}"
            if "://" in address and tf.io.gfile.exists(described_at):
                self._metadata = dict(json.loads(tf.io.gfile.GFile(described_at).read()))
            elif "://" not in address and Path(described_at).is_file():
                self._metadata = read_json(Path(described_at))
            kinds = {fact: int for fact in limits.values() if fact in self._metadata}
            # A model of one pair may have the languages of its card there.
            multilingual = "source_language" in inputs and "languages" in self._metadata
            described = check_kinds(self._metadata, kinds | ({"languages": str} if multilingual else {}))
        warn_of_saturation(address, self._metadata, onednn=True)
        self.max_values = {name: described[fact] for name, fact in limits.items() if fact in kinds}
        self.languages = described["languages"].split(", ") if multilingual else ()
        request = self.request(None, options)
        self._own = {**request.options, **request.languages}

    def __reduce__(self) -> Any:
        """Pickles the arguments. Another process opens the files again."""
        return functools.partial(type(self), **self._opened, batch_size=self.batch_size, **self._own), ()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values of `model_info`, and the configuration."""
        return self._metadata

    @checked
    def request(self, n: Count | None, options: Mapping[str, Any]) -> Request:
        if not self.call_options and (n or options):
            raise BadInput("n_best, options: expected the SavedModel of a translator, got another one")
        return super().request(n, options)

    def _replies(self, texts: list[str | bytes], request: Request) -> Iterator[TranslationResult]:
        batch = tf.constant([encoded(text) for text in texts])
        if request.n is None and not request.options and not request.languages:
            yield from self._best(texts, batch)
            return
        results = self.loaded.translate(batch, **self._inputs(request))
        outputs = {name: value.numpy().tolist() for name, value in results.items()}
        names = ("translations", "scores", "log_probs", "finished", "lengths")
        for i, source in enumerate(texts):
            rows = list(zip(*(outputs[name][i] for name in names), strict=True))[: request.n or 1]
            best, *others = [Hypothesis(text.decode("utf-8", "replace"), *values) for text, *values in rows]
            used = tuple(hypothesis for hypothesis in others if hypothesis.score > UNUSED)
            yield TranslationResult(source, (best, *used), outputs["source_length"][i], outputs["truncated"][i])

    def _best(self, texts: list[str | bytes], batch: Tensor) -> Iterator[TranslationResult]:
        """Calls serving_default, whose search ends as soon as the best output is certain."""
        outputs = self.loaded.signatures["serving_default"](text=batch)
        scores = outputs["score"].numpy().tolist() if "score" in outputs else [0.0] * len(texts)
        truncated = outputs["truncated"].numpy().tolist() if "truncated" in outputs else [False] * len(texts)
        counted = self._counted(texts) if "tokenize" in self.loaded.signatures else [(None, False)] * len(texts)
        columns = (texts, outputs[self._text].numpy().tolist(), scores, counted, truncated)
        for source, text, score, (length, _), cut in zip(*columns, strict=True):
            yield TranslationResult(source, (Hypothesis(text.decode("utf-8", "replace"), score),), length, cut)

    def _counted(self, texts: list[str | bytes]) -> list[tuple[int, bool]]:
        """Returns each text's number of tokens, and whether the model reads fewer."""
        most = self.metadata.get("max_source_length", MOST)
        # `tokenize` would read a huge text to its end, which takes seconds and gigabytes.
        parts = truncate_texts(texts, most)
        lengths = self.loaded.signatures["tokenize"](text=tf.constant([encoded(part) for part, _ in parts]))["length"]
        return [
            (length, cut or length > most) for length, (_, cut) in zip(lengths.numpy().tolist(), parts, strict=True)
        ]

    def _aligned(self, texts: list[str | bytes], request: Request) -> Iterator[Aligned]:
        batch = tf.constant([encoded(text) for text in texts])
        details = self.loaded.translate_details(batch, **self._inputs(request))
        tokens = details["tokens"][:, 0]
        outputs = self.loaded.signatures["detokenize"](tokens=tokens)["text"].numpy().tolist()
        strings = (part.numpy().tolist() for part in (details["source_tokens"], tokens, details["alignments"][:, 0]))
        rows = zip(texts, outputs, self._counted(texts), *strings, strict=True)
        for source, text, (length, cut), *parts in rows:
            # Other whitespace, such as U+3000, can be part of a token. A control token begins with a space.
            source_tokens, tokens, pairs = (
                [token for token in part.decode("utf-8", "replace").split(" ") if token] for part in parts
            )
            links = [int(pair.partition("-")[0]) for pair in pairs]
            source = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
            yield Aligned(source, text.decode("utf-8", "replace"), source_tokens, tokens, links, cut, length)

    def _inputs(self, request: Request) -> dict[str, Tensor]:
        """Returns options and languages of a request as inputs of a signature."""
        inputs = {name: tf.constant([value], SEARCH_OPTIONS[name].dtype) for name, value in request.options.items()}
        return inputs | {name: tf.constant([language]) for name, language in request.languages.items()}
