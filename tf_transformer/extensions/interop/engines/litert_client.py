"""Translates with a LiteRT or an ONNX export, without TensorFlow and without the rest of this package.

    python litert_client.py FOLDER < text

prints the translation of each line, which is one sentence. With --n-best it prints index, score and translation of
each output, best first. Needs ai-edge-litert or onnxruntime, sentencepiece and NumPy. It imports nothing else of the
package, so that a copy of this file runs anywhere.
"""

import abc
import argparse
import atexit
import codecs
import contextlib
import functools
import hashlib
import json
import math
import numbers
import os
import platform
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

NO_OPTIONS = ("source", "n_best", "target_language")  # inputs of the file
LANGUAGES = ("source_language", "target_language")  # options of multilingual models
LIMITS = ("beam_size", "max_length", "max_source_length", "extra_length")  # integers in model.json
CODE = "(?s:>>.*?<<)"  # target language at the start of a text, as in ">>fra<< Good morning."
UNKNOWN = 3  # Smaller ids are control tokens.
BYTES_OF_A_TOKEN = 64  # SentencePiece's longest piece has 16 characters.
CONTROLS = dict.fromkeys(range(32), " ")  # Control characters count as whitespace.
# Those, and Unicode's category Z. A SavedModel cuts the same.
SEPARATORS = re.compile(r"[\x00-\x20\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
MAX_BYTES = 2**26  # JSON and tokenizer files are read as a whole.
BATCH_SIZE = 32
AVERAGE = 128  # tokens of a source of a full batch. Longer ones count as several, since they take as much memory
STANDARD_ERROR = threading.RLock()
# What a library of the runtime needs, which `CompiledModel` always loads. Without it, the library ends the process.
NEWER_ARM = {"atomics", "asimddp"}
PROCESSOR = Path("/proc/cpuinfo")

codecs.register_error("as_space", lambda error: (" ", error.end))  # type: ignore[attr-defined]


class Translation(NamedTuple):
    """A hypothesis for a text."""

    text: str
    score: float  # log-probability / length penalty
    log_prob: float
    finished: bool  # ends with EOS
    length: int  # number of tokens, without EOS


class _Translator(abc.ABC):
    """Base class of the translators for both runtimes. See `LiteRTTranslator` for arguments and attributes."""

    KIND: str  # for messages
    MODEL: str  # file name

    def __init__(self, path: str | os.PathLike[str], threads: int = 1, batch_size: int = BATCH_SIZE) -> None:
        for name, number in (("threads", threads), ("batch_size", batch_size)):
            if number < 1:
                raise ValueError(f"{name}: expected a positive number, got {number}")
        path = _newest(Path(os.path.expanduser(path)), self.MODEL)
        for name in (self.MODEL, "model.json"):
            if not (path / name).is_file():
                message = f"expected the directory of {self.KIND} or of its versions, found no {name} in {path}"
                raise FileNotFoundError(message)
        self._lock: Any = threading.Lock()
        with _reading(path, self.KIND):
            self.metadata: dict[str, Any] = _json(path / "model.json")
            self._tokenizer = (_Pieces if (path / "vocabulary.json").is_file() else _SentencePiece)(path)
            for name in LIMITS:
                if not isinstance(self.metadata[name], int):
                    raise ValueError(f"{name}: expected a whole number, got {self.metadata[name]!r}"[:200])
            with (path / self.MODEL).open("rb") as content:
                checksum = hashlib.file_digest(content, "sha256").hexdigest()
            if checksum != self.metadata["sha256"]:
                raise ValueError(
                    f"{self.MODEL} with SHA-256 {checksum}, where model.json says {self.metadata['sha256']}"
                )
            with _quiet():
                signatures = self._opened(str(path / self.MODEL), threads)
            self._signatures = sorted(signatures, key=lambda signature: signature.tokens)
            self.batch_size = batch_size if self._signatures[-1].takes_several else 1
            self.languages = {str(code): int(id) for code, id in dict(self.metadata.get("language_ids", {})).items()}
            names = [name for name in self._signatures[-1].dtypes if name not in NO_OPTIONS]
            self.options = {name: self.metadata[name] for name in [*names, *(LANGUAGES if self.languages else ())]}
            self._eos, self._extra_length = int(self.metadata["ids"]["end"]), int(self.metadata["extra_length"])
            # A first call finds values of wrong types, and lets the runtime allocate its memory.
            self._search([""], 1, {})

    @abc.abstractmethod
    def _opened(self, file: str, threads: int) -> Sequence["_Signature | _Runner | _Graph"]:
        """Returns the functions of a file."""

    @overload
    def __call__(self, texts: str | bytes, **options: Any) -> str: ...

    @overload
    def __call__(self, texts: Iterable[str | bytes], **options: Any) -> list[str]: ...

    def __call__(self, texts: str | bytes | Iterable[str | bytes], **options: Any) -> str | list[str]:
        """Translates a text to a string, or an iterable of texts to a list.

        Bytes that are not UTF-8 count as whitespace. `options` are values for names in `self.options`.
        """
        if isinstance(texts, str | bytes):
            return self.n_best(texts, 1, **options)[0].text
        return [best.text for best, *_ in self.n_best(texts, 1, **options)]

    @overload
    def n_best(self, texts: str | bytes, n: int, **options: Any) -> list[Translation]: ...

    @overload
    def n_best(self, texts: Iterable[str | bytes], n: int, **options: Any) -> list[list[Translation]]: ...

    def n_best(
        self, texts: str | bytes | Iterable[str | bytes], n: int, **options: Any
    ) -> list[Translation] | list[list[Translation]]:
        """Returns the `n` best translations of a text, or of each text of an iterable: at least 1, at most `beam_size`.

        Raises:
            TypeError: If an option is unknown or not a number, or a text is not a string.
            ValueError: If the model does not support a language.
        """
        several = [texts] if isinstance(texts, str | bytes) else [*texts]
        translations = [self._translations(outputs, n) for _, outputs in self._search(several, n, options)]
        return translations[0] if isinstance(texts, str | bytes) else translations

    def replies(self, texts: Iterable[str | bytes], n: int, **options: Any) -> list[tuple[int, list[Translation]]]:
        """Returns each text's number of tokens and its `n_best`, without the warning about long texts."""
        results = self._search([*texts], n, options, warn=False)
        return [(length, self._translations(outputs, n)) for length, outputs in results]

    def _translations(self, outputs: dict[str, np.ndarray], n: int) -> list[Translation]:
        # Unused slots have length 0. An empty text has one translation, also of length 0.
        used = max(1, min(n, int(np.count_nonzero(outputs["lengths"]))))
        columns = [outputs[name][:used].tolist() for name in ("scores", "log_probs", "finished")]
        return [
            Translation(self.text(ids), score, log_prob, finished, len(ids) - finished)
            for ids, score, log_prob, finished in zip(_ids(outputs)[:used], *columns, strict=True)
        ]

    def ids(self, text: str | bytes, n: int, **options: Any) -> list[list[int]]:
        """Returns the token ids of the `n` best outputs, with EOS."""
        return _ids(self._search([text], n, options)[0][1])[: max(n, 1)]

    def source_ids(self, text: str | bytes) -> list[int]:
        """Returns the token ids of a text, without its language and EOS.

        The model reads the first `max_source_length` of them. A huge text is cut after 64 bytes per token that the
        model reads: more would only take memory.
        """
        max_bytes, text = BYTES_OF_A_TOKEN * (self._signatures[-1].tokens + 1), _text(text)
        if len(text) * 4 > max_bytes and len(content := text.encode()) > max_bytes:
            text = SEPARATORS.sub(" ", content.decode()).encode()[:max_bytes].decode("utf-8", "as_space")
        return self._tokenizer.encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of an output's ids."""
        return self._tokenizer.decode(ids)

    def _search(
        self, texts: Sequence[str | bytes], n: int, options: dict[str, Any], warn: bool = True
    ) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Returns each text's number of tokens and its outputs."""
        values, sources = self._values(n, options), [self.source_ids(text) for text in texts]
        max_tokens, language = self._signatures[-1].tokens, [values[LANGUAGES[0]]] if self.languages else []
        for text, ids in zip(texts, sources, strict=True):
            if warn and len(ids) > max_tokens:
                warning = "more tokens than the model reads; only the beginning is read"
                warnings.warn(f"{warning}: {text[:40]!r}", stacklevel=3)
        # Texts of similar length share a batch, since the longest decides how many steps it takes.
        results = dict[int, dict[str, np.ndarray]]()
        for batch in _batches([len(ids) for ids in sources], self.batch_size):
            rows = [[*language, *sources[i][:max_tokens], self._eos] for i in batch]
            longest = len(rows[-1]) - len(language) - 1
            fitting = [signature for signature in self._signatures if longest <= signature.tokens]
            with self._lock:
                outputs = fitting[0](rows, values)
                # The output is empty if it needs more steps, or candidates of a shortlist, than this signature has.
                limit = min(longest + self._extra_length, values["max_length"])
                for signature in [*(long for long in fitting[1:-1] if long.steps >= limit), *fitting[1:][-1:]]:
                    if not longest or outputs[-1]["lengths"][0]:
                        break
                    outputs = signature(rows, values)
            results.update(zip(batch, outputs, strict=True))
        return [(len(ids), results[i]) for i, ids in enumerate(sources)]

    def _values(self, n: int, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the values of a file's inputs by name: those of a call or the model's, and ids of languages."""
        if unknown := options.keys() - self.options.keys():
            names = ", ".join(self.options)
            raise TypeError(f"options: expected {names}, as the export fixes others; got {', '.join(sorted(unknown))}")
        for name, value in options.items():
            if name not in LANGUAGES and not isinstance(value, numbers.Real):
                raise TypeError(f"{name}: expected a number, got {value!r}"[:200])
        # NaN means the default.
        values = self.options | {name: value for name, value in options.items() if value == value}
        values["n_best"] = max(n, 1)
        for name in LANGUAGES if self.languages else ():
            if values[name] not in [*self.languages]:  # A list compares values of any type, even without a hash.
                examples = ", ".join([*self.languages][:5])
                expected = f"expected one of {len(self.languages)} languages, such as {examples}"
                raise ValueError(f"{name}: {expected}; got {values[name]!r}"[:200])
            values[name] = self.languages[values[name]]
        return values


class LiteRTTranslator(_Translator):
    """Translator for a directory that `Translator.save(path, format="litert")` wrote.

    `LiteRTTranslator("litert/demo/1")("Hello world.")` returns "Hallo Welt.". One object translates one text at a time:
    threads that share it wait for each other. To translate in parallel, give each thread an object.

    Args:
        path: Directory of the export, or of its versions, which means the newest.
        threads: Number of threads of the runtime.
        batch_size: Maximum number of texts in a call of the runtime, or fewer long ones. LiteRT takes one.

    Attributes:
        metadata: Contents of model.json.
        options: Names that a call may set, with the model's defaults.
        languages: Ids of the languages that a multilingual model supports, by code.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file has other contents, or a number is not positive.
    """

    KIND, MODEL = "a LiteRT export", "model.tflite"

    def __del__(self) -> None:
        # The runtime lists the accelerators that it unloads. The attribute is missing if the file was not opened.
        with contextlib.suppress(Exception), _quiet():
            del self._signatures

    def _opened(self, file: str, threads: int) -> "Sequence[_Signature | _Runner]":
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.interpreter import Interpreter
        from ai_edge_litert.options import CpuOptions, Options

        # `Interpreter` raises for a file that would end the process in `CompiledModel`.
        interpreter = Interpreter(model_path=file, num_threads=threads)
        if _is_older_arm():
            interpreter.allocate_tensors()  # It prints once what it does.
            return [_Runner(interpreter, name) for name in interpreter.get_signature_list()]
        del interpreter  # its copy of the weights
        _end_quietly()
        # All signatures share one packed copy of the weights, where the system allows it. Those of an `Interpreter`
        # have a copy each.
        cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=":memory" * (sys.platform == "linux"))
        model = CompiledModel.from_file(file, options=Options(HardwareAccelerator.CPU, cpu))
        return [_Signature(model, name) for name in model.get_signature_list()]


class ONNXTranslator(_Translator):
    """Translator for a directory that `Translator.save(path, format="onnx")` wrote.

    It works like `LiteRTTranslator`, but threads that share an object need not wait. A call of the runtime takes
    `batch_size` texts in float32. In int8 it takes one, since texts of a batch would change each other's translations.
    """

    KIND, MODEL = "an ONNX export", "model.onnx"

    def _opened(self, file: str, threads: int) -> "Sequence[_Graph]":
        self._lock = contextlib.nullcontext()
        return [_Graph(file, threads, self.metadata)]


def opened(path: str | os.PathLike[str], threads: int = 1) -> _Translator:
    """Returns the translator for an export of either kind, or for the newest of its versions."""
    kinds = {kind.MODEL: kind for kind in (LiteRTTranslator, ONNXTranslator)}
    folder = _newest(Path(os.path.expanduser(path)), *kinds)
    for name, kind in kinds.items():
        if (folder / name).is_file():
            return kind(folder, threads)
    names = " or ".join(kinds)
    raise FileNotFoundError(f"expected the directory of an export or of its versions, found no {names} in {folder}")


class _Signature:
    """A function of a LiteRT file, with the `dtypes` of its inputs by name.

    The longest source has `tokens`, without language and EOS. An output that needs more `steps`, with EOS, is empty.
    """

    takes_several = False  # whether a call may have several sources whose outputs do not depend on each other

    def __init__(self, model: Any, name: str) -> None:
        inputs, outputs = model.get_input_tensor_details(name), model.get_output_tensor_details(name)
        self._width = inputs["source"]["shape"][1]
        self.tokens = self._width - 1 - ("target_language" in inputs)
        self.steps = outputs["ids"]["shape"][1]
        self.dtypes = {each: np.dtype(details["dtype"]) for each, details in inputs.items()}
        self._inputs = {each: model.create_input_buffer_by_name(name, each) for each in inputs}
        self._outputs = {each: model.create_output_buffer_by_name(name, each) for each in outputs}
        self._results = [
            (each, math.prod(details["shape"]), np.dtype(details["dtype"]), details["shape"])
            for each, details in outputs.items()
        ]
        self._run = functools.partial(model.run_by_name, name, self._inputs, self._outputs)
        # The runtime looks for accelerators again when the first input is written, here still quietly.
        self._write([], dict.fromkeys(inputs, 0))

    def _write(self, source: list[int], values: Mapping[str, float]) -> None:
        for name, value in _inputs([source + [0] * (self._width - len(source))], values, self.dtypes).items():
            self._inputs[name].write(value)

    def __call__(self, sources: list[list[int]], values: Mapping[str, float]) -> list[dict[str, np.ndarray]]:
        """Returns the outputs of the one source, which includes its language and EOS, for values of other inputs."""
        (source,) = sources
        self._write(source, values)
        self._run()
        results = self._results
        return [{name: self._outputs[name].read(size, dtype).reshape(shape) for name, size, dtype, shape in results}]


class _Runner:
    """A function of a LiteRT file by `Interpreter`, where `CompiledModel` ends the process, as on a Raspberry Pi 4.

    It has the attributes of `_Signature`. Each signature has a copy of the weights.
    """

    takes_several = False

    def __init__(self, interpreter: Any, name: str) -> None:
        self._run = interpreter.get_signature_runner(name)
        inputs, outputs = self._run.get_input_details(), self._run.get_output_details()
        self._width = int(inputs["source"]["shape"][1])
        self.tokens = self._width - 1 - ("target_language" in inputs)
        self.steps = int(outputs["ids"]["shape"][1])
        self.dtypes = {each: np.dtype(details["dtype"]) for each, details in inputs.items()}

    def __call__(self, sources: list[list[int]], values: Mapping[str, float]) -> list[dict[str, np.ndarray]]:
        (source,) = sources
        return [self._run(**_inputs([source + [0] * (self._width - len(source))], values, self.dtypes))]


def _is_older_arm() -> bool:
    """Returns whether the processor is Arm's and lacks some of `NEWER_ARM`."""
    if platform.machine() != "aarch64" or not PROCESSOR.is_file():
        return False
    features = [line.split() for line in PROCESSOR.read_text().splitlines() if line.startswith("Features")]
    return any(not NEWER_ARM.issubset(words) for words in features)


class _Graph:
    """An ONNX file: one function for any number of sources of any lengths. It has the attributes of `_Signature`."""

    def __init__(self, file: str, threads: int, metadata: Mapping[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # It raises errors, and need not log them.
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.tokens, self.steps = int(metadata["max_source_length"]), int(metadata["max_length"])
        inputs = {port.name: port for port in self._session.get_inputs()}
        kinds = {"tensor(int32)": np.dtype(np.int32), "tensor(float)": np.dtype(np.float32)}
        self.dtypes = {name: kinds[port.type] for name, port in inputs.items()}
        # Files of earlier versions take one source.
        self.takes_several = inputs["source"].shape[0] != 1 and metadata["dtype"] != "int8"
        self._outputs = [port.name for port in self._session.get_outputs()]

    def __call__(self, sources: list[list[int]], values: Mapping[str, float]) -> list[dict[str, np.ndarray]]:
        width = max(map(len, sources))
        inputs = _inputs([source + [0] * (width - len(source)) for source in sources], values, self.dtypes)
        # The graph lists the outputs of one source after those of the other.
        columns = [np.split(output, len(sources)) for output in self._session.run(self._outputs, inputs)]
        return [dict(zip(self._outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def _inputs(rows: list[list[int]], values: Mapping[str, float], dtypes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns arrays for the inputs of a file: rows of ids, and values, or the nearest ones that the dtypes can hold.

    The file clips values to the ranges of the options.
    """
    inputs = {"source": np.array(rows, dtypes["source"])}
    for name, dtype in dtypes.items():
        if name != "source":
            largest = np.iinfo(dtype).max if dtype.kind == "i" else float(np.finfo(dtype).max)
            inputs[name] = np.array([min(max(values[name], -largest), largest)], dtype)
    return inputs


def _ids(outputs: dict[str, np.ndarray]) -> list[list[int]]:
    """Returns the ids of each output, without padding."""
    return [ids[:length].tolist() for ids, length in zip(outputs["ids"], outputs["lengths"], strict=True)]


def _batches(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields the indices of sources in batches, by size in tokens: at most `most` of average size, or one."""
    batch = list[int]()
    for i in sorted(range(len(sizes)), key=sizes.__getitem__):
        if batch and (len(batch) + 1) * max(sizes[i], AVERAGE) > most * AVERAGE:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Raises errors about the contents of a directory as a one-line `ValueError`."""
    try:
        yield
    except Exception as error:
        of_contents = ArithmeticError, LookupError, RuntimeError, TypeError, ValueError
        if not isinstance(error, of_contents) and not type(error).__module__.startswith("onnxruntime."):
            raise
        text = " ".join(str(error).split())
        if isinstance(error, KeyError | TypeError):  # Their messages are about Python.
            text = f"no {text} in it" if isinstance(error, KeyError) else "a value of another type in it"
        raise ValueError(f"{path}: expected {kind}, got something else: {text}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drops what C++ writes to standard error: the runtime lists there each accelerator that it does not find."""
    # A service has no standard error, and another file may have its number.
    if sys.__stderr__ is None:
        yield
        return
    with STANDARD_ERROR, open(os.devnull, "wb") as null:
        if sys.stderr is not None:
            sys.stderr.flush()
        original = os.dup(2)
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(original, 2)
            os.close(original)


# Registered once, at the first model: functions registered later are called before, so their messages appear.
@functools.cache
def _end_quietly() -> None:
    """Closes standard error when the process ends, for the accelerators that the runtime lists there once more."""
    atexit.register(lambda: sys.__stderr__ is None or os.dup2(os.open(os.devnull, os.O_WRONLY), 2))


def _newest(path: Path, *files: str) -> Path:
    """Returns `path` if it has one of the files, or else the newest version in it that has, if any."""
    versions = sorted((one for one in path.glob("[0-9]*") if one.name.isdecimal()), key=lambda one: -int(one.name))
    return next((one for one in (path, *versions) if any((one / name).is_file() for name in files)), path)


class _SentencePiece:
    """The vocabulary of one SentencePiece model."""

    def __init__(self, folder: Path) -> None:
        self._engine = _engine(folder / "tokenizer.model")

    def encode(self, text: str) -> list[int]:
        return list(self._engine.encode(text.translate(CONTROLS)))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._engine.decode([id for id in ids if id > self._engine.eos_id()]))


class _Pieces:
    """Like `PieceTokenizer`: SentencePiece, ids in (source_)vocabulary.json, and added tokens in tokens.json."""

    def __init__(self, folder: Path) -> None:
        both, file = folder / "sentencepiece.bpe.model", folder / "source_vocabulary.json"
        has_codes, pieces = not both.is_file(), _json(folder / "vocabulary.json")
        source, target = [_engine(folder / f"{side}.spm" if has_codes else both) for side in ("source", "target")]
        sources = _json(file) if file.is_file() else pieces
        self._ids = {piece: id for id, piece in enumerate(sources) if piece and id >= UNKNOWN}
        # Ids of the whitespace before a token, if it counts, and of the token. Earlier exports have only the latter.
        tokens = _json(folder / "tokens.json") if (folder / "tokens.json").is_file() else {}
        self._tokens = {token: ids if isinstance(ids, list) else [ids] for token, ids in tokens.items()}
        self._texts = texts_of(pieces, self._tokens, target if file.is_file() else source, target)
        split = functools.partial(source.encode, out_type=str)
        self._split = functools.partial(split_codes, split) if has_codes else split

    def encode(self, text: str) -> list[int]:
        return encoded([text], self._ids, self._tokens, self._split)[0]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._texts[id] for id in ids).strip().decode("utf-8", "replace")


# `PieceTokenizer` calls these functions too.


def encoded(
    texts: list[str],
    ids: Mapping[str, int],
    tokens: Mapping[str, list[int]],
    split: Callable[[list[str]], list[list[str]]],
) -> list[list[int]]:
    """Returns the ids of texts. `tokens` are matched first, the longest at each position, and `split` splits the rest.

    If a token has two ids, the first one is of whitespace before it.
    """
    added = one_of(tokens)
    # SentencePiece itself ignores only spaces at the end of a text.
    texts = [text.rstrip() for text in texts]
    # Every second part is an added token.
    rows = [re.split(f"({added})", text) if added else [text] for text in texts]
    between = iter(split([part for row in rows for part in row[::2]]))
    results = []
    for row in rows:
        result = list[int]()
        for i, part in enumerate(row):
            if i % 2:
                result += tokens[part][0 if row[i - 1][-1:].isspace() else -1 :]
            else:
                result += [ids.get(piece, UNKNOWN) for piece in next(between)]
        results.append(result)
    return results


def one_of(tokens: Iterable[str]) -> str:
    """Returns a regular expression for one of these tokens, the longest first."""
    return "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))


def split_codes(split: Callable[[list[str]], list[list[str]]], texts: list[str]) -> list[list[str]]:
    """Returns the pieces of texts by `split`, after the codes that some begin with."""
    codes = [re.match(CODE, text) for text in texts]
    rows = split([text[code.end() if code else 0 :] for text, code in zip(texts, codes, strict=True)])
    return [[code[0], *row] if code else row for row, code in zip(rows, codes, strict=True)]


def texts_of(pieces: list[str], tokens: Mapping[str, list[int]], engine: Any, target: Any) -> list[bytes]:
    """Returns the text of each piece by id, by the `spelling` of the vocabulary's SentencePiece `engine`.

    Added `tokens` have a space before them, unless spaces are tokens or it is a piece of the `target` engine.
    """
    texts = [b"" if id <= UNKNOWN else spelling(piece, engine) for id, piece in enumerate(pieces)]
    for token, ids in tokens.items():
        if token in pieces and len(ids) == 1 and target.piece_to_id(token) == target.unk_id():
            texts[pieces.index(token)] = b" " + texts[pieces.index(token)]
    return texts


def spelling(piece: str, engine: Any) -> bytes:
    """Returns the text of a piece: one byte for a byte piece, nothing for a control token."""
    id = engine.piece_to_id(piece)
    if engine.is_byte(id):
        return bytes([int(piece[1:-1], 16)])
    return b"" if engine.is_control(id) else piece.replace("\u2581", " ").encode()


def _engine(path: Path) -> Any:
    import sentencepiece

    if not path.is_file():
        raise FileNotFoundError(f"expected a SentencePiece model, found none at {path}")
    return sentencepiece.SentencePieceProcessor(model_file=str(_small(path)))


def _json(path: Path) -> Any:
    return json.loads(_small(path).read_text(encoding="utf-8"))


def _small(path: Path) -> Path:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ValueError(f"{path.name}: expected at most {MAX_BYTES:,} bytes, got {size:,}")
    return path


def _text(text: str | bytes) -> str:
    """Returns a text with a space for each sequence of bytes that is not UTF-8."""
    if not isinstance(text, str | bytes):
        raise TypeError(f"texts: expected strings, got {text!r}"[:200])
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return content.decode("utf-8", "as_space")


def option(text: str) -> tuple[str, Any]:
    """Parses NAME=VALUE; the value is a number or a language code."""
    name, _, value = text.partition("=")
    return name, value if name in LANGUAGES else json.loads(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="directory of an export, such as litert/demo/1, or of its versions (the newest)")
    parser.add_argument("--n-best", type=int, help="number of translations of each text")
    usage = "option of the search, such as length_penalty=1 or target_language=de. Repeatable."
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=usage)
    parser.add_argument("--threads", type=int, default=1, help="number of threads (1)")
    args = parser.parse_args(argv)
    for name in ("n_best", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")

    translator, options = opened(args.folder, args.threads), dict(args.option)
    # So many lines are sorted by length together.
    window, index = translator.batch_size**2, 0
    for lines in _lines(sys.stdin.buffer):
        for start in range(0, len(lines), window):
            texts = [line.rstrip(b"\r") for line in lines[start : start + window]]
            if not index:
                texts[0] = texts[0].removeprefix(codecs.BOM_UTF8)
            for i, best in enumerate(translator.n_best(texts, args.n_best or 1, **options), index):
                for one in best:
                    prefix = f"{i}\t{one.score:.4f}\t" if args.n_best else ""
                    # Byte pieces can spell a newline.
                    sys.stdout.buffer.write(f"{prefix}{one.text}".replace("\n", " ").encode() + b"\n")
            sys.stdout.buffer.flush()
            index += len(texts)


def _lines(file: Any) -> Iterator[list[bytes]]:
    """Yields the lines of a file as they arrive, so that typing a line prints its translation at once."""
    unfinished: list[bytes] = []
    while chunk := file.read1(2**16):
        end, *lines = chunk.split(b"\n")
        unfinished.append(end)
        if lines:
            yield [b"".join(unfinished), *lines[:-1]]
            unfinished = lines[-1:]
    if any(unfinished):
        yield [b"".join(unfinished)]


if __name__ == "__main__":
    for stream in ("stdout", "stderr"):
        # A closed stream (`2>&-`) is replaced, so that no other file takes its number.
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        main()
    except BrokenPipeError:
        # The reader has ended, as `head` does. Python must not write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
