"""Translate with a LiteRT or an ONNX folder. Needs ai-edge-litert or onnxruntime, sentencepiece and NumPy, neither
TensorFlow nor this package.

    python litert_client.py FOLDER < text

prints the translation of each line, which is one sentence; with --n-best, lines of number, score and translation, best
first. The file also runs alone, copied elsewhere: it imports nothing of this package.
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
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

NO_OPTIONS = ("source", "n_best", "target_language")  # inputs of the file
LANGUAGES = ("source_language", "target_language")  # options of a model of several
LIMITS = ("beam_size", "max_length", "max_source_length", "extra_length")  # in model.json, all of them numbers
CODE = re.compile(r">>.*?<<", re.DOTALL)  # at the start of a text for a model of several target languages
BYTES_OF_A_TOKEN = 64  # at most: SentencePiece's longest piece has 16 characters
CONTROLS = dict.fromkeys(range(32), " ")  # control characters count as white space
MOST_BYTES = 2**26  # of a file that is read as a whole: JSON, tokenizers
BATCH_SIZE = 32  # texts, where a call of the engine takes several
STANDARD_ERROR = threading.RLock()  # which all threads share


class Translation(NamedTuple):
    """One of the best translations of a text."""

    text: str
    score: float  # log-probability / length penalty
    log_prob: float
    finished: bool  # the end symbol was reached
    length: int  # its symbols, without the end symbol


class _Translator(abc.ABC):
    """What the classes for the engines share.

    Attributes:
        KIND: of folder, in a sentence.
        MODEL: the name of the model's file.
        facts, options: as of `LiteRTTranslator`.
        languages: the ids of those that the model knows, by code; {} if it has one pair.
        batch_size: texts in a call of the engine.
    """

    KIND: str
    MODEL: str

    def __init__(self, path: str | os.PathLike[str], threads: int = 1, batch_size: int = BATCH_SIZE) -> None:
        for name, number in (("threads", threads), ("batch_size", batch_size)):
            if number < 1:
                raise ValueError(f"{name}: expected a positive number, got {number}")
        path = _newest(Path(os.path.expanduser(path)), self.MODEL)
        for name in (self.MODEL, "model.json"):
            if not (path / name).is_file():
                message = f"expected the folder of {self.KIND} or of its versions, found no {name} in {path}"
                raise FileNotFoundError(message)
        with _reading(path, self.KIND):
            self.facts: dict[str, Any] = _json(path / "model.json")
            self._tokenizer = (_Pieces if (path / "vocabulary.json").is_file() else _SentencePiece)(path)
            for name in LIMITS:
                if not isinstance(self.facts[name], int):
                    raise ValueError(f"{name}: expected a whole number, got {self.facts[name]!r}"[:200])
            _check(path / self.MODEL, self.facts["sha256"])
        self._alone: Any = threading.Lock()
        with _quiet(), _reading(path, self.KIND):
            signatures = self._opened(str(path / self.MODEL), threads)
        self._signatures = sorted(signatures, key=lambda signature: signature.tokens)
        self.batch_size = batch_size if self._signatures[-1].takes_several else 1
        with _reading(path, self.KIND):
            dtypes = self._signatures[-1].dtypes
            self.languages = {str(code): int(id) for code, id in dict(self.facts.get("language_ids", {})).items()}
            names = [*(name for name in dtypes if name not in NO_OPTIONS), *(LANGUAGES if self.languages else ())]
            self.options = {name: self.facts[name] for name in names}
            self._end, self._extra_length = int(self.facts["ids"]["end"]), int(self.facts["extra_length"])
            self._search([""], 1, {})

    @abc.abstractmethod
    def _opened(self, file: str, threads: int) -> Sequence["_Signature | _Graph"]:
        """The functions of a file."""

    @overload  # a string is an iterable of strings, too
    def __call__(self, texts: str | bytes, **options: Any) -> str: ...

    @overload
    def __call__(self, texts: Iterable[str | bytes], **options: Any) -> list[str]: ...

    def __call__(self, texts: str | bytes | Iterable[str | bytes], **options: Any) -> str | list[str]:
        """The best translation of each text. One text gives a string, an iterable a list.

        Args:
            texts: UTF-8; bytes that are none count as white space.
            options: see `options`.
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
        """The n best translations of each text, best first; at most beam_size, and at least one. One text gives a list
        of them, an iterable a list of such lists.

        Raises:
            TypeError: there is no such option, a value is no number, or a text no string.
            ValueError: the model does not know a language.
        """
        several = [texts] if isinstance(texts, str | bytes) else [*texts]
        translations = [self._translations(found, n) for _, found in self._search(several, n, options)]
        return translations[0] if isinstance(texts, str | bytes) else translations

    def replies(self, texts: Iterable[str | bytes], n: int, **options: Any) -> list[tuple[int, list[Translation]]]:
        """Returns each text's number of tokens and what `n_best` returns, without its warning about long texts."""
        found = self._search([*texts], n, options, warn=False)
        return [(length, self._translations(outputs, n)) for length, outputs in found]

    def _translations(self, found: dict[str, np.ndarray], n: int) -> list[Translation]:
        """The n best of the outputs for a text."""
        used = max(1, min(n, int(np.count_nonzero(found["lengths"]))))
        columns = [found[name][:used].tolist() for name in ("scores", "log_probs", "finished")]
        return [
            Translation(self.text(ids), score, log_prob, finished, len(ids) - finished)
            for ids, score, log_prob, finished in zip(_outputs(found)[:used], *columns, strict=True)
        ]

    def ids(self, text: str | bytes, n: int, **options: Any) -> list[list[int]]:
        """The n best outputs as ids, their end symbol included; the arguments are as in `n_best`."""
        return _outputs(self._search([text], n, options)[0][1])[: max(n, 1)]

    def source_ids(self, text: str | bytes) -> list[int]:
        """The ids of a text, without its language and its end symbol; more than max_source_length are not read. Of a
        huge text they are those of its beginning, which are more: what comes after 64 bytes a token would take memory
        for nothing."""
        most, text = BYTES_OF_A_TOKEN * (self._signatures[-1].tokens + 1), _text(text)
        if len(text) * 4 > most and len(content := text.encode()) > most:
            plain = re.sub(r"[\s\x00-\x1f]+", " ", content.decode()).encode()
            text = plain[:most].decode("utf-8", "ignore")
        return self._tokenizer.encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """The text of an output's ids."""
        return self._tokenizer.decode(ids)

    def _search(
        self, texts: Sequence[str | bytes], n: int, options: dict[str, Any], warn: bool = True
    ) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Returns each text's number of tokens and its outputs. Texts in a call of the engine have similar lengths."""
        if unknown := options.keys() - self.options.keys():
            names = ", ".join(self.options)
            raise TypeError(f"options: expected {names}, as the export fixes others; got {', '.join(sorted(unknown))}")
        sources, most = [self.source_ids(text) for text in texts], self._signatures[-1].tokens
        for text, ids in zip(texts, sources, strict=True):
            if warn and len(ids) > most:
                what = "more tokens than the model reads; only the beginning is read"
                warnings.warn(f"{what}: {text[:40]!r}", stacklevel=3)
        for name, value in options.items():
            if name not in LANGUAGES and not isinstance(value, numbers.Real):
                raise TypeError(f"{name}: expected a number, got {value!r}"[:200])
        given = {name: value for name, value in options.items() if value == value}  # NaN means the default
        values = self.options | given | {"n_best": max(n, 1)}
        codes = {name: self._code(name, values.pop(name)) for name in LANGUAGES if self.languages}
        values, before = values | codes, [*(codes[name] for name in LANGUAGES[:1] if codes)]
        order, found = sorted(range(len(texts)), key=lambda i: len(sources[i])), dict[int, dict[str, np.ndarray]]()
        for start in range(0, len(order), self.batch_size):
            places = order[start : start + self.batch_size]
            found.update(zip(places, self._batch([sources[i][:most] for i in places], before, values), strict=True))
        return [(len(ids), found[i]) for i, ids in enumerate(sources)]

    def _batch(
        self, sources: list[list[int]], before: list[int], values: Mapping[str, float]
    ) -> list[dict[str, np.ndarray]]:
        """The outputs of the shortest signature that has room, for the ids of sources with others before them."""
        longest, read = max(map(len, sources)), [[*before, *ids, self._end] for ids in sources]
        fitting = [signature for signature in self._signatures if longest <= signature.tokens]
        with self._alone:
            found = fitting[0](read, values)
            if longest and not found[-1]["lengths"][0]:  # the search takes more steps than this signature has
                limit = min(longest + self._extra_length, values["max_length"])
                found = next((one for one in fitting if one.steps >= limit), fitting[-1])(read, values)
        return found

    def _code(self, name: str, language: Any) -> int:
        """The id of a language."""
        if language not in [*self.languages]:
            some = ", ".join([*self.languages][:5])
            known = f"expected one of {len(self.languages)} languages, such as {some}"
            raise ValueError(f"{name}: {known}; got {language!r}"[:200])
        return self.languages[language]


class LiteRTTranslator(_Translator):
    """Calls the model of a folder that `Translator.save(path, format="litert")` wrote.

    LiteRTTranslator("litert/demo/1")("Hello world.") gives "Hallo Welt.". One object translates one text at a time:
    threads that share it wait for each other, those with an object each do not.

    Args:
        path: the folder, or that of its versions, which means the newest.
        threads: of the engine.
        batch_size: texts in a call of the engine; LiteRT takes one.

    Attributes:
        facts: the contents of model.json.
        options: what a call may change, with the defaults of the model.

    Raises:
        FileNotFoundError: the folder lacks a file.
        ValueError: a file holds something else, or a number is not positive.
    """

    KIND, MODEL = "a LiteRT export", "model.tflite"

    def __del__(self) -> None:
        try:
            with _quiet():  # the engine lists the accelerators that it unloads
                del self._signatures
        except Exception:  # it was never opened, or Python is ending
            pass

    def _opened(self, file: str, threads: int) -> "Sequence[_Signature]":
        from ai_edge_litert.interpreter import Interpreter

        Interpreter(model_path=file)  # refuses what is no model, which would end the process below
        model = _compiled(file, threads)
        return [_Signature(model, name) for name in model.get_signature_list()]


class ONNXTranslator(_Translator):
    """Calls the model of a folder that `Translator.save(path, format="onnx")` wrote.

    As `LiteRTTranslator`, but threads that share an object need not wait. A call of the engine takes `batch_size` texts
    in float32; in int8 it takes one, since the texts of a call would change each other's translations.
    """

    KIND, MODEL = "an ONNX export", "model.onnx"

    def _opened(self, file: str, threads: int) -> "Sequence[_Graph]":
        self._alone = contextlib.nullcontext()
        return [_Graph(file, threads, self.facts)]


TRANSLATORS = (LiteRTTranslator, ONNXTranslator)


def opened(path: str | os.PathLike[str], threads: int = 1) -> _Translator:
    """The translator for what a folder, or the newest of its versions, holds; the arguments are as in
    `LiteRTTranslator`."""
    files = {one.MODEL: one for one in TRANSLATORS}
    folder = _newest(Path(os.path.expanduser(path)), *files)
    found = [one for name, one in files.items() if (folder / name).is_file()]
    if not found:
        names = " or ".join(files)
        raise FileNotFoundError(f"expected the folder of an export or of its versions, found no {names} in {folder}")
    return found[0](folder, threads)


class _Signature:
    """A function of a LiteRT file.

    Attributes:
        tokens: of the longest source, without its language and its end symbol.
        steps: symbols of the longest output, its end symbol included; an output that needs more is empty.
        dtypes: of the inputs, by name.
        takes_several: whether a call may have several sources, whose outputs do not depend on each other.
    """

    takes_several = False

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
        self._write([], dict.fromkeys(inputs, 0))  # the first time, the engine looks for accelerators once more

    def _write(self, source: list[int], values: Mapping[str, float]) -> None:
        padded = source + [0] * (self._width - len(source))
        for name, buffer in self._inputs.items():
            dtype = self.dtypes[name]
            buffer.write(np.array(padded if name == "source" else [_within(values[name], dtype)], dtype))

    def __call__(self, sources: list[list[int]], values: Mapping[str, float]) -> list[dict[str, np.ndarray]]:
        """The outputs for each source, of which there is one; it has its language, if there are several, and its end
        symbol. `values` are those of the other inputs."""
        (source,) = sources
        self._write(source, values)
        self._run()
        results = self._results
        return [{name: self._outputs[name].read(size, dtype).reshape(shape) for name, size, dtype, shape in results}]


class _Graph:
    """An ONNX file, a function for sources of all lengths. The attributes are those of `_Signature`."""

    def __init__(self, file: str, threads: int, facts: Mapping[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # errors, which it raises, too
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.tokens, self.steps = int(facts["max_source_length"]), int(facts["max_length"])
        kinds = {"tensor(int32)": np.dtype(np.int32), "tensor(float)": np.dtype(np.float32)}
        self.dtypes = {one.name: kinds[one.type] for one in self._session.get_inputs()}
        shapes = {one.name: one.shape for one in self._session.get_inputs()}
        self.takes_several = shapes["source"][0] != 1 and facts["dtype"] != "int8"  # earlier files take one
        self._outputs = [one.name for one in self._session.get_outputs()]

    def __call__(self, sources: list[list[int]], values: Mapping[str, float]) -> list[dict[str, np.ndarray]]:
        """As of `_Signature`, but for any number of sources."""
        width = max(map(len, sources))
        padded = [source + [0] * (width - len(source)) for source in sources]
        inputs = {
            name: np.array(padded if name == "source" else [_within(values[name], dtype)], dtype)
            for name, dtype in self.dtypes.items()
        }
        found = [np.split(output, len(sources)) for output in self._session.run(self._outputs, inputs)]
        return [dict(zip(self._outputs, one, strict=True)) for one in zip(*found, strict=True)]


def _within(value: float, dtype: np.dtype) -> float:
    """A value, or the nearest one that the dtype can hold. The file clips it further."""
    most = np.iinfo(dtype).max if dtype.kind == "i" else float(np.finfo(dtype).max)
    return min(max(value, -most), most)


def _check(file: Path, expected: str) -> None:
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != expected:
        raise ValueError(f"{file.name} with SHA-256 {found}, where model.json says {expected}")


def _compiled(file: str, threads: int) -> Any:
    """The engine's model, whose signatures share one packed copy of the weights where the system allows it."""
    from ai_edge_litert.compiled_model import CompiledModel
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator
    from ai_edge_litert.options import CpuOptions, Options

    _when_all_else_has_ended()
    cpu = CpuOptions(num_threads=threads, xnnpack_weight_cache_path=":memory" * (sys.platform == "linux"))
    return CompiledModel.from_file(file, options=Options(HardwareAccelerator.CPU, cpu))


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """What Python and the engine raise in this block, about the contents of a folder, as `ValueError` in one line."""
    try:
        yield
    except Exception as error:
        known = ArithmeticError, LookupError, RuntimeError, TypeError, ValueError
        if not isinstance(error, known) and not type(error).__module__.startswith("onnxruntime."):
            raise
        text = " ".join(str(error).split())
        if isinstance(error, KeyError | TypeError):  # Their texts are about Python.
            text = f"no {text} in it" if isinstance(error, KeyError) else "a value of another type in it"
        raise ValueError(f"{path}: expected {kind}, got something else: {text}") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without messages of C++ on standard error: the engine lists there each accelerator that it does not find."""
    if sys.__stderr__ is None:  # there is none, as in a service: its number may be that of another file
        yield
        return
    with STANDARD_ERROR:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nothing)


def _newest(path: Path, *files: str) -> Path:
    """`path` itself if it has one of the files, else the newest of its versions that has, those in folders named by a
    number."""
    versions = sorted((one for one in path.glob("[0-9]*") if one.name.isdecimal()), key=lambda one: -int(one.name))
    return next((one for one in (path, *versions) if any((one / name).is_file() for name in files)), path)


def _outputs(found: dict[str, np.ndarray]) -> list[list[int]]:
    """The ids of each output, without the zeros that follow."""
    return [ids[:length].tolist() for ids, length in zip(found["ids"], found["lengths"], strict=True)]


class _SentencePiece:
    """A vocabulary that SentencePiece numbers itself, for both sides."""

    def __init__(self, folder: Path) -> None:
        self._engine = _engine(folder / "tokenizer.model")

    def encode(self, text: str) -> list[int]:
        return list(self._engine.encode(text.translate(CONTROLS)))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._engine.decode([id for id in ids if id > self._engine.eos_id()]))


class _Pieces:
    """The SentencePiece models of both sides, or one for both, whose pieces have other numbers in vocabulary.json and,
    for sources, in source_vocabulary.json if there is one."""

    UNKNOWN = 3  # the first id of a piece; those before are control symbols

    def __init__(self, folder: Path) -> None:
        both = folder / "sentencepiece.bpe.model"
        self._has_codes = not both.is_file()  # of languages at the start of a text
        self._engine = _engine(folder / "source.spm" if self._has_codes else both)
        target = _engine(folder / "target.spm") if self._has_codes else self._engine
        pieces = _json(folder / "vocabulary.json")
        own = folder / "source_vocabulary.json"
        sources = _json(own) if own.is_file() else pieces
        self._ids = {piece: id for id, piece in enumerate(sources) if piece and id >= self.UNKNOWN}
        speller = target if own.is_file() else self._engine
        self._texts = [b"" if id <= self.UNKNOWN else _spelling(piece, speller) for id, piece in enumerate(pieces)]

    def encode(self, text: str) -> list[int]:
        text = text.rstrip()  # whatever white space it is; SentencePiece leaves out spaces alone
        code = CODE.match(text) if self._has_codes else None
        pieces = [code[0]] if code else []
        pieces += self._engine.encode(text[code.end() :] if code else text, out_type=str)
        return [self._ids.get(piece, self.UNKNOWN) for piece in pieces]

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._texts[id] for id in ids).strip().decode("utf-8", "replace")


def _spelling(piece: str, engine: Any) -> bytes:
    """The text of a piece: one byte for a byte piece, nothing for a control symbol."""
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
    """Check that a file is small enough to be read as a whole."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path.name}: expected at most {MOST_BYTES:,} bytes, got {size:,}")
    return path


def _text(text: str | bytes) -> str:
    """A text in which each part that is not UTF-8 is a space."""
    if not isinstance(text, str | bytes):
        raise TypeError(f"texts: expected strings, got {text!r}"[:200])
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return content.decode("utf-8", "as_space")


codecs.register_error("as_space", lambda error: (" ", error.end))  # type: ignore[attr-defined]


def option(text: str) -> tuple[str, Any]:
    """NAME=VALUE as name and number, or the code of a language."""
    name, _, value = text.partition("=")
    return name, value if name in LANGUAGES else json.loads(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of an export, e.g. litert/demo/1; of litert/demo the newest")
    parser.add_argument("--n-best", type=int, help="how many translations of each text")
    what = "an option, such as length_penalty=1 or target_language=de; may be repeated (the model's)"
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=what)
    parser.add_argument("--threads", type=int, default=1, help="threads of the engine (1)")
    args = parser.parse_args(argv)
    for name in ("n_best", "threads"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")

    translator, options = opened(args.folder, args.threads), dict(args.option)
    some, first = translator.batch_size**2, 0  # lines, which are sorted by length together
    for lines in _lines(sys.stdin.buffer):
        for start in range(0, len(lines), some):
            texts = [line.rstrip(b"\r") for line in lines[start : start + some]]
            if not first:
                texts[0] = texts[0].removeprefix(codecs.BOM_UTF8)
            for i, best in enumerate(translator.n_best(texts, args.n_best or 1, **options), first):
                for one in best:
                    place = f"{i}\t{one.score:.4f}\t" if args.n_best else ""
                    sys.stdout.buffer.write(f"{place}{one.text}".replace("\n", " ").encode() + b"\n")
            sys.stdout.buffer.flush()
            first += len(texts)


def _lines(file: Any) -> Iterator[list[bytes]]:
    """The lines of a file, as many as there are at a time: a person who types gets an answer after each."""
    begun: list[bytes] = []
    while chunk := file.read1(2**16):
        end, *lines = chunk.split(b"\n")
        begun.append(end)
        if lines:
            yield [b"".join(begun), *lines[:-1]]
            begun = lines[-1:]
    if any(begun):
        yield [b"".join(begun)]


@functools.cache
def _when_all_else_has_ended() -> None:
    """Once, since what is registered first is called last: messages of what came after it still appear."""
    atexit.register(_end_quietly)


def _end_quietly() -> None:
    """Close standard error for the accelerators that the engine still lists there when the process ends."""
    if sys.__stderr__ is not None:  # else its number may be that of another file
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


if __name__ == "__main__":
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it is closed, as by `2>&-`; what is printed there must not go to the other
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        main()
    except BrokenPipeError:  # the reader has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
