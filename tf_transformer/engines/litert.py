"""A LiteRT export as an engine. It loads no TensorFlow."""

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from tf_transformer.base.extras import import_extra
from tf_transformer.base.files import user_path
from tf_transformer.base.terminal import quiet_stderr
from tf_transformer.base.values import BadInput, between, checked
from tf_transformer.engines.engine import Answer, Engine, Reply, Request
from tf_transformer.engines.litert_client import LiteRTTranslator


class LiteRT(Engine):
    """Calls a LiteRT export, which translates one text after the other.

    Args:
        path: the folder of the export, or that of its versions, which means the newest.
        threads: of the engine.
        options: defaults of the calls, for options that the file takes.

    Raises:
        BadInput: ai-edge-litert is not installed, the folder holds something else, or an option has another value than
            it may have.
        FileNotFoundError: the folder lacks a file.
    """

    batch_size = 1

    @checked
    def __init__(
        self, path: str | os.PathLike[str], threads: Annotated[int, between(1, 1_024)] = 1, **options: Any
    ) -> None:
        import_extra("ai_edge_litert", "litert", "a LiteRT export")
        try:
            self._client = LiteRTTranslator(user_path(path), threads)
        except ValueError as error:
            raise BadInput(str(error)) from error
        self.changeable = tuple(self._client.options)
        self.highest = {"n_best": self.facts["beam_size"], "max_length": self.facts["max_length"]}
        self._own = self.request(None, options).options

    def __del__(self) -> None:
        with contextlib.suppress(Exception), quiet_stderr():  # the engine lists the accelerators that it unloads
            del self._client

    @property
    def facts(self) -> Mapping[str, Any]:
        """The contents of model.json."""
        return self._client.facts

    def _replies(self, texts: list[str | bytes], request: Request) -> Iterator[Reply]:
        for text in texts:
            length = len(self._client.source_ids(text))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of long texts: the reply says so
                best = self._client.n_best(text, request.n or 1, **request.options)
            answers = tuple(Answer(*one) for one in best)
            yield Reply(text, answers, length, length > self.facts["max_source_length"])
