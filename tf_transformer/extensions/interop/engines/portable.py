"""LiteRT and ONNX exports as engines, without TensorFlow."""

import functools
import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.extensions.interop.engines import litert_client
from tf_transformer.inference.engine import Engine, Hypothesis, Request, TranslationResult, warn_of_saturation
from tf_transformer.inference.loading import Opener
from tf_transformer.utils import folders
from tf_transformer.utils.files import user_path
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.terminal import STANDARD_ERROR
from tf_transformer.utils.values import BadInput, Count, between, checked

# Threads that silence standard error must wait for each other, here and in the rest of the package.
litert_client.STANDARD_ERROR = STANDARD_ERROR


class PortableEngine(Engine):
    """Engine for an export that takes and returns token ids.

    Args:
        path: Directory of the export, or of its versions, which means the newest.
        threads: Number of threads.
        batch_size: Maximum number of texts per batch. They are sorted by length, and long ones have smaller batches. It
            is 1 for LiteRT, for int8 and for ONNX exports of earlier versions.
        options: Defaults of calls, for options that the export takes.

    Raises:
        BadInput: If the runtime is not installed, the directory holds something else, or an option is out of range.
        FileNotFoundError: If a file is missing.
    """

    calls = None
    package: ClassVar[tuple[str, str]]  # the runtime, and the extra that installs it
    translator: Any  # class of `litert_client`

    @checked
    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: Annotated[int, between(1, 1_024)] = 1,
        batch_size: Count = litert_client.BATCH_SIZE,
        **options: Any,
    ) -> None:
        import_extra(*self.package, self.translator.KIND)
        try:
            self._client = self.translator(user_path(path), threads, batch_size)
        except ValueError as error:
            raise BadInput(str(error)) from error
        self._arguments: dict[str, Any] = {"path": folders.model_folder(path).absolute(), "threads": threads}
        self.batch_size = self._client.batch_size
        self.call_options = tuple(name for name in self._client.options if name not in LANGUAGES)
        self.max_values = {"n_best": self.metadata["beam_size"], "max_length": self.metadata["max_length"]}
        self.languages = list(self._client.languages)
        request = self.request(None, options)
        self._own = {**request.options, **request.languages}

    def __reduce__(self) -> Any:
        # Another process opens the directory again: the runtime's objects cannot be pickled.
        return functools.partial(type(self), **self._arguments, batch_size=self.batch_size, **self._own), ()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Contents of model.json."""
        return self._client.metadata

    def _replies(self, texts: list[str | bytes], request: Request) -> Iterator[TranslationResult]:
        results = self._client.replies(texts, request.n or 1, **request.options, **request.languages)
        for text, (length, best) in zip(texts, results, strict=True):
            yield TranslationResult(
                text, tuple(Hypothesis(*one) for one in best), length, length > self.metadata["max_source_length"]
            )


class LiteRT(PortableEngine):
    """Engine for a LiteRT export. It translates one text after the other. Arguments are those of `PortableEngine`."""

    package = "ai_edge_litert", "litert"
    translator = litert_client.LiteRTTranslator
    parallel = "processes"  # The runtime holds Python's lock while it runs.


class ONNX(PortableEngine):
    """Engine for an ONNX export. It translates batches of texts. Arguments are those of `PortableEngine`."""

    package = "onnxruntime", "onnx"
    translator = litert_client.ONNXTranslator
    parallel = "threads"
    joins = False  # A batch takes almost as long as its texts one by one, and all wait for its longest output.

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        warn_of_saturation(self._arguments["path"], self.metadata)


OPENS_LITERT, OPENS_ONNX = (
    Opener(kind.translator.KIND, functools.partial(folders.holds, file=file), kind, takes=frozenset({"threads"}))
    for kind, file in ((LiteRT, folders.LITERT_FILE), (ONNX, folders.ONNX_FILE))
)
