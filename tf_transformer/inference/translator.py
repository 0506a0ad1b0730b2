"""Text in, text out: a model, its tokenizer and its search as one value, in Python and as a SavedModel."""

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from keras import ops

from tf_transformer.decoding import sampling
from tf_transformer.decoding.compiling import input_signature, rounded, width_of, with_rows
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.decoding.search_options import MOST_BEAMS, SEARCH_OPTIONS
from tf_transformer.decoding.text_decoder import TextDecoder
from tf_transformer.decoding.text_model import TextModel, padded
from tf_transformer.inference.alignment import Aligned
from tf_transformer.inference.engine import (
    REQUEST_OPTIONS,
    Answer,
    Engine,
    Reply,
    Request,
    check_texts,
    in_batches,
    warned,
)
from tf_transformer.inference.rebuild import rebuilt
from tf_transformer.serving.formats import format_of
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.terminal import Progress
from tf_transformer.utils.type_names import Dtype, Folders, Tensor
from tf_transformer.utils.values import MOST, BadInput, Count, Positive, Seed, checked

if TYPE_CHECKING:
    from tf_transformer.serving import contract
else:
    contract = lazily("tf_transformer.serving.contract", "a SavedModel")

NO_LIMIT = 2**30  # symbols of an output


class Translator(TextModel, Engine):
    """Translates texts: translator(["Hello world."]) gives ["Hallo Welt."]. `save` exports the same function.

    A translator does not change: `replace` gives another one. Only the model's weights are read at every call, so the
    model may go on training.

    Args:
        model: a built `Transformer` or `Ensemble`.
        tokenizer: the one it was trained with.
        batch_size: sentences a batch when called from Python.
        export_options: default arguments of `export`, such as the origin and the licence of a pretrained model.
        options: of the search, listed in `decoding.search_options` with their defaults; each is also an attribute.
            Among them:

            - beam_size: K of section 6.1 (4).
            - length_penalty: its exponent, the paper's α (0.6).
            - min_length: the least number of tokens of an output, its end symbol included (0).
            - patience: a search ends when patience * beam_size outputs have finished (2); `math.inf` makes it exact.
            - extra_length: an output has at most this many tokens more than its source, its end symbol included (50); a
              number above 10,000 counts as 10,000.
            - max_source_length: the most tokens of a source; the rest is cut, with a warning in Python (256).
            - source_language, target_language: of a model of several languages, which `tokenizer.languages` lists.

    Raises:
        BadInput: an option is out of range, or the sizes of tokenizer and vocabulary differ.
    """

    aligns = True
    highest: Mapping[str, float] = {
        **dict.fromkeys((*REQUEST_OPTIONS, "n_best"), math.inf),
        "beam_size": MOST_BEAMS,
        "length_penalty": 10,
    }

    @checked
    def __init__(
        self,
        model: TextDecoder,
        tokenizer: Tokenizer,
        *,
        batch_size: Count = 64,
        export_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if languages := {name: options.pop(name) for name in LANGUAGES if name in options}:
            tokenizer = tokenizer.for_languages(**languages)
        super().__init__(model, tokenizer, export_options=export_options, **options)
        self.batch_size = batch_size

    @classmethod
    @checked
    def from_pretrained(
        cls,
        path: Folders,
        *,
        average_last: Count | None = None,
        family: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """A translator with its Keras model, to train or to change it: built from the weights of a run, a SavedModel or
        a pretrained checkpoint.

        Args:
            path: a run's folder, or a list of several for an `Ensemble`; the folder of a SavedModel or a checkpoint, or
                of its versions, which means the newest; or a checkpoint's name on the Hugging Face hub. A name without
                an owner is one of the family's owner.
            average_last: a run's checkpoints to average (section 6.1); `None` means the number in its recipe.
            family: the name of a checkpoint's family in `models.families`; `None` means the one that recognizes its
                files.
            revision: a branch, a tag or a commit of the hub's model; `None` means its main branch. Only a commit always
                means the same files. Without a revision, runs/mine and what begins with a folder here are no names.
            options: of `Translator`; by default those of the SavedModel or the checkpoint.

        Raises:
            BadInput: there is no such model, or it is of another kind.
        """
        built = rebuilt(path, average_last, family, revision)
        translator = cls(built.model, built.tokenizer, **{**built.options, **options})
        facts = dict(built.facts)
        if built.longest:
            facts["max_length"] = min(built.longest, translator.max_source_length + translator.extra_length)
        if "max_beam_size" in facts:
            facts["max_beam_size"] = max(facts["max_beam_size"], translator.beam_size)
        return translator.replace(export_options=facts | translator.export_options)

    def _described(self) -> str:
        model, config = self.model, self.model.config
        count = f"ensemble of {len(model.models)}, " if hasattr(model, "models") else ""
        layers = f"{config.num_layers} + {config.decoder_layers} layers, d_model={config.d_model}"
        return f"{count}{layers}, vocab_size={config.vocab_size}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an export would say of it."""
        sizes = {"vocab_size": self.tokenizer.vocab_size, "dtype": self.model.dtype_policy.name}
        languages = dict[str, Any]()
        with contextlib.suppress(BadInput):  # one is not chosen yet
            languages |= zip(LANGUAGES, self.tokenizer.spoken(), strict=False)
        return {**self.export_options, **sizes, **languages, "tokenizer": self.tokenizer.fingerprint}

    @property
    def languages(self) -> Sequence[str]:  # type: ignore[override]
        """Those that the model knows; () if it has one pair."""
        return self.tokenizer.languages

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"batch_size": self.batch_size}

    def __reduce__(self) -> Any:
        """Pickles the arguments; Keras pickles the model with its weights."""
        return functools.partial(type(self), **self._arguments()), ()

    def replace(self, **changes: Any) -> Self:
        """Another translator, with some of this one's arguments changed: `translator.replace(beam_size=1)`."""
        return super().replace(**changes)

    @checked
    def astype(self, dtype: Dtype) -> Self:
        """This translator with weights stored and multiplied in float32, bfloat16, float16 or int8.

        Attention weights, logits after their product, search and scores stay float32. int8 (`layers.int8`) is only
        for products with weights. A change of int8 weights after the first product has no effect. float16 is for GPUs:
        on some CPUs it is 75 times slower than float32.

        Raises:
            BadInput: the dtype is unknown, or TensorFlow cannot multiply 8-bit integers here.
        """
        return self.replace(model=self.model.astype(dtype))

    @checked
    def n_best(
        self,
        texts: Iterable[str | bytes],
        n: Count = 1,
        prefixes: Iterable[str | bytes] | None = None,
        **options: Any,
    ) -> list[list[Answer]]:
        """The n best translations of each text, best first; at most beam_size, and at least one.

        Args:
            texts: sentences.
            n: how many.
            prefixes: whole words that each text's translations begin with; "" means anything. An empty text has none.
            options: as for a call.
        """
        if prefixes is None:
            return [list(reply.answers) for reply in warned(self.replies(texts, n, **options))]
        texts, prefixes, request = check_texts(texts), check_texts(prefixes), self.request(n, options)
        self.check_prefixes(texts, prefixes, request.languages)

        def replies(places: list[int]) -> Iterable[Reply]:
            return self._replies([texts[i] for i in places], request, [prefixes[i] for i in places])

        with Progress(len(texts), "texts") as progress:
            found = in_batches(replies, texts, self.batch_size, progress.add)
        return [list(reply.answers) for reply in warned(found)]

    def _aligned(self, texts: list[str | bytes], request: Request) -> Iterator[Aligned]:
        (asked, places, longest), tokenizer = self._options_of(request), self._speaking(request.languages)

        def search(columns: list[Tensor], start: Tensor, given: Mapping[str, Tensor]) -> Any:
            source, length = columns
            fixed = self.fixed(source, places, longest)
            found, symbols = self.detailed_search(source, length, start, fixed, **given)
            return found.ids, found.ids, found.lengths, found.finished, symbols.attended

        name = f"aligned, {places if asked else ''}, {longest}"
        rows = self._outputs(name, search, texts, 1, tokenizer, lambda *_: [], asked)
        sources, *_ = self.read(texts, tokenizer)
        for source, read, (length, cut, *parts) in zip(texts, sources, rows, strict=True):
            text, ids, symbols, finished, attended = (part[0] for part in parts)
            string = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
            tokens = tokenizer.tokens(ids[: symbols - finished])
            source_tokens = tokenizer.source_tokens(read[: np.count_nonzero(read) - 1].tolist())
            yield Aligned(string, text, source_tokens, tokens, attended[: len(tokens)], cut, length)

    def _replies(
        self, texts: list[str | bytes], request: Request, prefixes: list[str | bytes] | None = None
    ) -> Iterator[Reply]:
        asked, places, longest = self._options_of(request)
        n = min(request.n or 1, places)

        def search(columns: list[Tensor], start: Tensor, given: Mapping[str, Tensor], n: Tensor) -> Any:
            source, length, *prefix = columns
            own = {"n_best": places, "exact_n": n, "prefix": prefix[0] if prefix else None}
            return self.search(source, length, start=start, fixed=self.fixed(source, places, longest), **own, **given)

        name = f"best, {'prefixes, ' * (prefixes is not None)}{places if asked else ''}, {longest}"
        tokenizer, columns = self._speaking(request.languages), list[Any]()
        if prefixes is not None:
            begin = [row[tokenizer.codes :] for row in tokenizer.encode_target(prefixes)]
            columns = [padded(begin, width_of(begin, NO_LIMIT))]
        rows = self._outputs(name, search, texts, n, tokenizer, lambda *_: columns, asked, np.int32(n))
        for source, (length, truncated, *values) in zip(texts, rows, strict=True):
            answers = [
                Answer(text, score, log_prob, finished, symbols - finished)
                for k, (text, score, log_prob, symbols, finished) in enumerate(zip(*values, strict=True))
                if k == 0 or symbols
            ]
            yield Reply(source, tuple(answers), length, truncated)

    def _options_of(self, request: Request) -> tuple[dict[str, np.ndarray], int, int | None]:
        """All options of a call that changes some, and the beams and the longest output that there is room for."""
        if not request.options:
            return {}, self.beam_size, None
        options = {name: self.options.get(name, NO_LIMIT) for name in REQUEST_OPTIONS} | dict(request.options)
        asked = {name: np.array(value, SEARCH_OPTIONS[name].dtype) for name, value in options.items()}
        places = 1 << (options["beam_size"] - 1).bit_length()  # few functions for all sizes
        return asked, places, None if ON_TENSORFLOW else rounded(options["max_length"], 4)  # of fixed shapes

    def _speaking(self, languages: Mapping[str, str]) -> Tokenizer:
        return self.tokenizer.for_languages(**languages) if languages else self.tokenizer

    @checked
    def sample(
        self,
        texts: Sequence[str],
        temperature: Positive = 1.0,
        k: Count | None = None,
        seed: Seed = 0,
        **languages: str,
    ) -> list[str]:
        """A random translation of each text, which depends on the text, its place in the list, and the seed alone.

        Args:
            texts: sentences; one that comes several times has several translations.
            temperature: above 1 for more variety, below 1 for less; near 0 it draws the likeliest symbol.
            k: the number of symbols to choose from, the likeliest; `None` means all.
            seed: any whole number; equal ones give equal translations.
            languages: source_language and target_language, of a model of several; by default the translator's own.
        """
        sources, request = check_texts(texts), self.request(None, languages)
        given = [np.float32(temperature), *([] if k is None else [np.int32(min(k, self.tokenizer.vocab_size))])]
        widest = None if k is None or ON_TENSORFLOW else 1 << (k - 1).bit_length()  # few functions for all k

        def draw(columns: list[Tensor], start: Tensor, temperature: Tensor, k: Tensor = None) -> Any:
            source, length, uniforms = columns
            return self.drawn(source, length, start, uniforms, temperature=temperature, k=k, widest=widest)

        def replies(places: list[int]) -> Iterator[Reply]:
            batch = [sources[i] for i in places]

            def uniforms(source: np.ndarray, length: np.ndarray) -> list[np.ndarray]:
                fixed = self.fixed(source, 1)
                longest = fixed.steps if fixed else int(np.max(self.limit(length, MOST)))
                return [sampling.uniforms_of(seed, places, longest)]

            tokenizer = self._speaking(request.languages)
            rows = self._outputs(f"sample, {len(given)}, {widest}", draw, batch, 1, tokenizer, uniforms, *given)
            for source, (length, truncated, texts, scores, *_) in zip(batch, rows, strict=True):
                yield Reply(source, (Answer(texts[0], scores[0]),), length, truncated)

        with Progress(len(sources), "texts") as progress:
            found = in_batches(replies, sources, self.batch_size, progress.add)
        return [reply.text for reply in warned(found)]

    def _outputs(
        self,
        name: str,
        function: Callable[..., Any],
        texts: list[str | bytes],
        n: int,
        tokenizer: Tokenizer,
        columns_of: Callable[[np.ndarray, np.ndarray], list[np.ndarray]],
        *others: Any,
    ) -> Iterator[tuple[Any, ...]]:
        """Call a function of tensors, compiled once under a name.

        It takes a batch's ids [B, S], their lengths [B] and the further columns [B, ...] that are made of both in a
        list, the start ids [P], and others; it returns `Hypotheses`.

        Returns:
            of each row its length, whether it is truncated, and n texts, scores, log_probs, lengths and finished.
        """
        source, length, truncated = self.read(with_rows(texts, self.batch_size), tokenizer)
        columns = [source, length]
        for column in columns_of(source, length):
            columns.append(np.pad(column, ((0, len(source) - len(column)), *[(0, 0)] * (column.ndim - 1))))
        given = columns, np.array(tokenizer.start_ids(), np.int32), *others
        found = self.traced(name, function, **input_signature(*given))(*given)
        ids, *parts = (ops.convert_to_numpy(part)[: len(texts), :n].tolist() for part in found)
        flat = iter(tokenizer.decode([row for outputs in ids for row in outputs]))
        written = ([*itertools.islice(flat, len(outputs))] for outputs in ids)
        of_sources = (part[: len(texts)].tolist() for part in (length, truncated))
        return zip(*of_sources, written, *parts, strict=True)

    def save(self, path: str | os.PathLike[str], format: str = "savedmodel", **options: Any) -> None:
        """Write this translator in a format of `serving.formats`, whole or not at all.

        Args:
            path: must not exist; of a SavedModel <name>/<integer version>, TensorFlow Serving's layout.
            format: "savedmodel", the serving contract (savedmodels/README.md), "litert", "onnx", "ctranslate2" or
                "transformers".
            options: of the format; those of a SavedModel are the arguments of `export`.
        """
        format_of(format).save(self, path, **options)

    def export(self, **options: Any) -> "contract.Export":
        """The export that `save` writes; `serving.contract.Export` has the options. Its weights have what LoRA has
        learned."""
        model = self.model.merged()
        translator = self if model is self.model else self.replace(model=model)
        return contract.Export(translator, **(self.export_options | options))
