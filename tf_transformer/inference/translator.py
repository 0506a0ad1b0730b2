"""A model, its tokenizer and its search options as one value, which translates strings and can be exported."""

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from keras import ops

from tf_transformer import registry
from tf_transformer.decoding.primitives import ON_TENSORFLOW, input_signature, rounded, width_of, with_rows
from tf_transformer.decoding.search_options import LANGUAGES, MOST_BEAMS, SEARCH_OPTIONS
from tf_transformer.decoding.tensor_translator import TensorTranslator, check_length, padded
from tf_transformer.inference.engine import (
    REQUEST_OPTIONS,
    Engine,
    Hypothesis,
    Request,
    TranslationResult,
    in_batches,
    strings_in,
    warned,
)
from tf_transformer.inference.loading import SPECIAL, opener_of
from tf_transformer.inference.sampling import sampled
from tf_transformer.inference.words import Aligned
from tf_transformer.models.families import Rebuilt
from tf_transformer.models.transformer import Attention, AttentionScores, Transformer
from tf_transformer.tokenizers.strings import truncate_texts
from tf_transformer.tokenizers.tokenizer import EOS_ID, UNKNOWN_ID, Tokenizer
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.terminal import Progress
from tf_transformer.utils.type_names import Dtype, Folders, Tensor
from tf_transformer.utils.values import MOST, BadInput, Count, Positive, Seed, checked

if TYPE_CHECKING:
    from tf_transformer.serving import contract
else:
    contract = lazily("tf_transformer.serving.contract", "a SavedModel")

NO_LIMIT = 2**30  # tokens of an output
Read = tuple[np.ndarray, np.ndarray, np.ndarray]  # ids int32 [B, S], lengths int32 [B], truncated bool [B]


class Translator(TensorTranslator, Engine):
    """Translates texts: `translator(["Hello world."])` returns `["Hallo Welt."]`.

    Immutable. Call `replace` for a modified copy. Every call reads the model's weights, so it may continue training.

    Args:
        model: Built `Transformer` or `Ensemble`.
        tokenizer: Tokenizer that the model was trained with.
        batch_size: Maximum number of sentences per batch in calls from Python. Long ones have smaller batches.
        export_options: Default arguments of `export`, such as the origin and license of a pretrained model.
        options: Search options, listed in `decoding.search_options` with their defaults. Each is also an attribute.
            Among them:

            - beam_size: K of section 6.1 (4).
            - length_penalty: Exponent of the length penalty, the paper's α (0.6).
            - min_length: Minimum output length in tokens, including EOS (0).
            - patience: A search ends when patience * beam_size outputs have finished (2). `math.inf` makes it exact.
            - extra_length: Maximum number of output tokens, including EOS, beyond the source's (50), at most 10,000.
            - max_source_length: Maximum number of source tokens (256). Longer sources are cut, with a warning.
            - source_language, target_language: Languages of a multilingual model, which `tokenizer.languages` lists.

    Raises:
        BadInput: If an option is out of range, or the sizes of tokenizer and vocabulary differ.
    """

    aligns = True
    max_values: Mapping[str, float] = {
        **dict.fromkeys((*REQUEST_OPTIONS, "n_best"), math.inf),
        "beam_size": MOST_BEAMS,
        "length_penalty": 10,
    }

    @checked
    def __init__(
        self,
        model: "Transformer",  # quoted, so that `checked` accepts models of other classes
        tokenizer: Tokenizer,
        *,
        batch_size: Count = 64,
        export_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if languages := {name: options.pop(name) for name in LANGUAGES if name in options}:
            tokenizer = tokenizer.with_languages(**languages)
        super().__init__(model, tokenizer, export_options=export_options, **options)
        self.batch_size = batch_size

    @classmethod
    @checked
    def from_pretrained(
        cls,
        path: Folders,
        *,
        average_last: Count | None = None,
        step: Count | None = None,
        family: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Loads a trainable Keras model and its tokenizer from a run, a SavedModel or a pretrained checkpoint.

        Args:
            path: A run's directory, or a list of several for an `Ensemble`. Or the directory of a SavedModel or a
                checkpoint, or of its versions, of which the newest is loaded. Or a checkpoint's name on the Hugging
                Face Hub. A name without an owner gets the family's.
            average_last: Number of a run's checkpoints to average (section 6.1). `None` means that of its recipe.
            step: Step of a run's checkpoint to load instead of an average.
            family: Family of a checkpoint, "marian" or "m2m100". `None` means the one that recognizes its files.
            revision: Branch, tag or commit on the Hub. `None` means the main branch. Only a commit is reproducible.
                Without a revision, "runs/mine" and names that begin with an existing directory are paths.
            options: Options of `Translator`. Default to those of the SavedModel or the checkpoint.

        Raises:
            BadInput: If `path` holds no such model.
        """
        sources = {"average_last": average_last, "step": step, "family": family, "revision": revision}
        sources = {name: value for name, value in sources.items() if value is not None}
        opener, where = opener_of(path, sources, rebuilds=True)
        built: Rebuilt = opener.rebuild(where, **sources)  # type: ignore[misc]  # `rebuilds` selects one that can
        translator = cls(built.model, built.tokenizer, **{**built.options, **options})
        metadata = dict(built.metadata)
        if built.longest:
            metadata["max_length"] = min(built.longest, translator.max_source_length + translator.extra_length)
        if "max_beam_size" in metadata:
            metadata["max_beam_size"] = max(metadata["max_beam_size"], translator.beam_size)
        return translator.replace(export_options=metadata | translator.export_options)

    def _described(self) -> str:
        model, config = self.model, self.model.config
        count = f"ensemble of {len(model.models)}, " if hasattr(model, "models") else ""
        layers = f"{config.num_layers} + {config.decoder_layers} layers, d_model={config.d_model}"
        return f"{count}{layers}, vocab_size={config.vocab_size}"

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata that an export would have."""
        sizes = {"vocab_size": self.tokenizer.vocab_size, "dtype": self.model.dtype_policy.name}
        languages = dict[str, Any]()
        with contextlib.suppress(BadInput):  # if one is not chosen yet
            languages |= zip(LANGUAGES, self.tokenizer.current_languages(), strict=False)
        return {**self.export_options, **sizes, **languages, "tokenizer": self.tokenizer.fingerprint}

    @property
    def languages(self) -> Sequence[str]:  # type: ignore[override]
        """Languages of a multilingual model, otherwise ()."""
        return self.tokenizer.languages

    def _arguments(self) -> dict[str, Any]:
        return super()._arguments() | {"batch_size": self.batch_size}

    def __reduce__(self) -> Any:
        """Pickles the arguments. Keras pickles the model with its weights."""
        return functools.partial(type(self), **self._arguments()), ()

    @checked
    def astype(self, dtype: Dtype) -> Self:
        """Returns a copy whose weights are stored and multiplied in float32, bfloat16, float16 or int8.

        Attention weights, logits, search and scores use float32. int8 (`layers.int8`) only applies to
        matmuls with weights, and changes of int8 weights after the first matmul have no effect. float16 is for GPUs: on
        some CPUs it is 75 times slower than float32.

        Raises:
            BadInput: If the dtype is unknown, or TensorFlow cannot multiply 8-bit integers on this machine.
        """
        return self.replace(model=self.model.astype(dtype))

    @checked
    def n_best(
        self, texts: Iterable[str | bytes], n: Count = 1, prefixes: Iterable[str | bytes] | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        """Returns the n best translations of each text, best first: at least one, at most beam_size.

        Args:
            texts: Sentences.
            n: Number of translations.
            prefixes: Whole words that each text's translations begin with, "" for any. Empty texts have none.
            options: As in a call.

        Raises:
            BadInput: As in a call, or if a prefix is longer than an output may be or has tokens out of vocabulary.
        """
        if prefixes is None:
            return super().n_best(texts, n, **options)
        texts, prefixes, request = list(strings_in(texts)), list(strings_in(prefixes)), self.request(n, options)
        if len(prefixes) != len(texts):
            raise BadInput(f"expected a prefix for each of {len(texts)} texts, got {len(prefixes)}")
        tokenizer = self.tokenizer_of(request)
        lengths = [len(row) - tokenizer.num_language_tokens for row in tokenizer.encode(texts)]
        # Checked before any search: a prefix longer than its output could not be kept, and an unknown token never.
        limits = ops.convert_to_numpy(self.limit(np.array(lengths, np.int32), MOST))
        ids = [row[tokenizer.num_language_tokens :] for row in tokenizer.encode_target(prefixes)]
        for i, (limit, row) in enumerate(zip(limits, ids, strict=True)):
            if limit and len(row) > limit:
                raise BadInput(
                    f"prefixes: expected at most the {limit} tokens of an output, got {len(row)} at index {i}"
                )
            if UNKNOWN_ID in row:
                raise BadInput(f"prefixes: expected tokens of the vocabulary, got {prefixes[i]!r:.99} at index {i}")

        def translate(indices: list[int]) -> Iterable[TranslationResult]:
            return self._replies([texts[i] for i in indices], request, [ids[i] for i in indices])

        with Progress(len(texts), "texts") as progress:
            replies = in_batches(translate, texts, self.batch_size, progress.add)
        return [list(reply.hypotheses) for reply in warned(replies)]

    def _replies(
        self, texts: list[str | bytes], request: Request, prefixes: list[list[int]] | None = None
    ) -> Iterator[TranslationResult]:
        options, beams, longest = self._options_of(request)
        n, tokenizer = min(request.n or 1, beams), self.tokenizer_of(request)

        # This is traced once per name. So the name has all that is a constant of the graph, and the rest is arguments.
        def search(columns: list[Tensor], start: Tensor, options: Mapping[str, Tensor], n: Tensor) -> Any:
            source, length, *prefix = columns
            outputs = {"n_best": beams, "exact_n": n, "prefix": prefix[0] if prefix else None}
            fixed = self.fixed_shapes(source, beams, longest)
            return self.search(source, length, start=start, fixed=fixed, **outputs, **options)

        name = f"best, {'prefixes, ' * (prefixes is not None)}{beams if options else ''}, {longest}"
        columns = [] if prefixes is None else [padded(prefixes, width_of(prefixes, NO_LIMIT))]
        read = self.read(with_rows(texts, self.batch_size), tokenizer)
        rows = self.outputs(name, search, len(texts), n, tokenizer, read, columns, options, np.int32(n))
        for source, (length, truncated, *values) in zip(texts, rows, strict=True):
            hypotheses = [
                Hypothesis(text, score, log_prob, finished, tokens - finished)
                for k, (text, score, log_prob, tokens, finished) in enumerate(zip(*values, strict=True))
                if k == 0 or tokens  # unused slots have no tokens, but every text has a first output
            ]
            yield TranslationResult(source, tuple(hypotheses), length, truncated)

    def _aligned(self, texts: list[str | bytes], request: Request) -> Iterator[Aligned]:
        (options, beams, longest), tokenizer = self._options_of(request), self.tokenizer_of(request)

        def search(columns: list[Tensor], start: Tensor, options: Mapping[str, Tensor]) -> Any:
            source, length = columns
            fixed = self.fixed_shapes(source, beams, longest)
            outputs, tokens = self.detailed_search(source, length, start, fixed, **options)
            return outputs.ids, outputs.ids, outputs.lengths, outputs.finished, tokens.attended

        name = f"aligned, {beams if options else ''}, {longest}"
        read = self.read(with_rows(texts, self.batch_size), tokenizer)
        rows = self.outputs(name, search, len(texts), 1, tokenizer, read, [], options)
        for source, source_ids, (length, cut, *parts) in zip(texts, read[0][: len(texts)], rows, strict=True):
            text, ids, count, finished, attended = (part[0] for part in parts)
            string = source.decode("utf-8", "replace") if isinstance(source, bytes) else source
            tokens = tokenizer.tokens(ids[: count - finished])
            source_tokens = tokenizer.source_tokens(source_ids[: np.count_nonzero(source_ids) - 1].tolist())
            yield Aligned(string, text, source_tokens, tokens, attended[: len(tokens)], cut, length)

    @checked
    def sample(
        self,
        texts: Sequence[str],
        temperature: Positive = 1.0,
        k: Count | None = None,
        seed: Seed = 0,
        **languages: str,
    ) -> list[str]:
        """Returns a random translation of each text. It depends only on the text, its index in the list, and the seed.

        Args:
            texts: Sentences. Repeated sentences get several translations.
            temperature: Above 1 for more variety, below 1 for less. Near 0 it samples the likeliest token.
            k: Number of likeliest tokens to choose from. `None` means all.
            seed: Any integer.
            languages: source_language and target_language of a multilingual model. Default to the translator's.
        """
        sources, request = list(strings_in(texts)), self.request(None, languages)
        return sampled(self, sources, request, seed, temperature, k)

    def tokenizer_of(self, request: Request) -> Tokenizer:
        """Returns the tokenizer for the languages of a request."""
        return self.tokenizer.with_languages(**request.languages) if request.languages else self.tokenizer

    def _options_of(self, request: Request) -> tuple[dict[str, np.ndarray], int, int | None]:
        """Returns the options of a call, and the beams and the longest output that its search has room for.

        A call that changes no option uses the function whose options are constants, and returns {} here. Otherwise all
        options are arguments, and beams are rounded up, so that few functions serve all calls.
        """
        if not request.options:
            return {}, self.beam_size, None
        options = {name: self.options.get(name, NO_LIMIT) for name in REQUEST_OPTIONS} | dict(request.options)
        arrays = {name: np.array(value, SEARCH_OPTIONS[name].dtype) for name, value in options.items()}
        # The next power of two. Rows of the search mask the beams that were not requested.
        beams = 1 << (options["beam_size"] - 1).bit_length()
        return arrays, beams, None if ON_TENSORFLOW else rounded(options["max_length"], 4)

    def read(self, texts: Sequence[str | bytes], tokenizer: Tokenizer) -> Read:
        """Tokenizes like `source`, by this model's tokenizer for some languages. The number of ids may be `rounded`."""
        # In Python and not by `source`, since JAX and PyTorch have no tensors of strings.
        shortened = truncate_texts(texts, self.max_source_length)
        rows, cut = tokenizer.encode([text for text, _ in shortened]), [is_cut for _, is_cut in shortened]
        length = np.array([len(row) - tokenizer.num_language_tokens for row in rows], np.int32)
        most = self.max_source_length + tokenizer.num_language_tokens
        rows = [[*row[:most], EOS_ID] for row in rows]
        return padded(rows, width_of(rows, most + 1)), length, np.array(cut, bool) | (length > self.max_source_length)

    def outputs(
        self,
        name: str,
        function: Callable[..., Any],
        count: int,
        n: int,
        tokenizer: Tokenizer,
        read: Read,
        columns: Sequence[np.ndarray],
        *others: Any,
    ) -> Iterator[tuple[Any, ...]]:
        """Calls a function of tensors, which is compiled once under `name`, and detokenizes its outputs.

        The function takes a list of ids [B, S], lengths [B] and more columns [B, ...], then start ids [P] and `others`.
        It returns ids [B, N, L] and other arrays [B, N, ...]. Each of the first `count` rows becomes its length,
        whether it is truncated, n texts, and n values of each other array.
        """
        # `read` may have more rows than texts, so that JAX compiles for few sizes. Other columns are filled up alike.
        source, length, truncated = read
        fill = lambda column: [(0, len(source) - len(column)), *[(0, 0)] * (column.ndim - 1)]  # noqa: E731
        inputs = [source, length, *(np.pad(column, fill(column)) for column in columns)]
        arguments = inputs, np.array(tokenizer.start_ids(), np.int32), *others
        results = self.traced(name, function, **input_signature(*arguments))(*arguments)
        ids, *parts = (ops.convert_to_numpy(part)[:count, :n].tolist() for part in results)
        # One call for all outputs, since SentencePiece uses all cores for many texts.
        flat = iter(tokenizer.decode([row for outputs in ids for row in outputs]))
        texts = ([*itertools.islice(flat, len(outputs))] for outputs in ids)
        of_sources = (part[:count].tolist() for part in (length, truncated))
        return zip(*of_sources, texts, *parts, strict=True)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Returns the attention weights of a sentence and its translation, with their tokens.

        Args:
            source: Sentence.
            target: Translation. `None` means the best one that the search finds.

        Raises:
            BadInput: If a text has no tokens, or too many.
        """
        ids, length, _ = self.read([source], self.tokenizer)
        check_length("sentence", int(length[0]), self.max_source_length)
        if target is not None:
            return self.attention_of(ids, self.ended("translation", self._target(target)))
        arguments = [ids, length], np.array(self.tokenizer.start_ids(), np.int32)

        search = lambda columns, start: self.search(*columns, start=start)  # noqa: E731
        best = self.traced("attention", search, **input_signature(*arguments))(*arguments)
        (row,) = ops.convert_to_numpy(best.ids)[:, 0].tolist()
        return self.attention_of(ids, row[: int(best.lengths[0, 0])])

    def attention_scores(self, source: str, target: str) -> AttentionScores:
        """Returns the attention weights of a pair of sentences, each cut to the tokens that the model reads."""
        ids, *_ = self.read([source], self.tokenizer)
        return self.attention_of(ids, [*self._target(target)[: self._most() - 1], EOS_ID]).scores

    def attention_of(self, source: np.ndarray, output: Sequence[int]) -> Attention:
        """Returns the attention weights and tokens of padded source ids [1, S] and output ids, both with EOS."""
        first, *language = self.tokenizer.start_ids()  # a language is a token too
        # Without padding, since each row and column of the plot is labeled with a token.
        source, output = source[:, : np.count_nonzero(source)], [*language, *output]
        shifted = np.array([[first, *output][:-1]], np.int32)
        scores = self.model((source, shifted), return_attention_scores=True)[1]
        tokens = self.tokenizer.source_tokens(source[0].tolist()), self.tokenizer.tokens(output)
        source_tokens, output_tokens = ([token.strip() for token in each] for each in tokens)  # controls have a space
        return Attention(source_tokens, output_tokens, scores)

    def _target(self, text: str) -> list[int]:
        return self.tokenizer.encode_target([text])[0][self.tokenizer.num_language_tokens :]

    def ended(self, name: str, ids: Sequence[int]) -> list[int]:
        """Appends EOS to the ids of an output. Raises `BadInput` if it is empty or too long."""
        check_length(name, len(ids), self._most() - 1)
        return [*ids, EOS_ID]

    def _most(self) -> int:
        """Returns the maximum number of tokens of an output, including EOS."""
        most: int = self.max_source_length + self.extra_length
        return most if self.model.max_length is None else min(most, self.model.max_length)

    def save(self, path: str | os.PathLike[str], format: str = "savedmodel", **options: Any) -> None:
        """Saves the translator in a format of `serving.formats`, atomically.

        Args:
            path: New directory. For a SavedModel <name>/<integer version>, TensorFlow Serving's layout.
            format: "savedmodel", with the serving contract (savedmodels/README.md), "litert", "onnx", "ctranslate2",
                "argos" or "transformers".
            options: Options of the format. Those of a SavedModel are the arguments of `export`.

        Raises:
            BadInput: If the format is unknown, or does not support the model, the path or an option.
            FileExistsError: If `path` exists.
        """
        registry.find("formats", format).save(self, path, **options)

    def export(self, **options: Any) -> "contract.Export":
        """Returns the export that `save` writes, with LoRA merged. `options` are those of `serving.contract.Export`."""
        model = self.model.merged()
        translator = self if model is self.model else self.replace(model=model)
        return contract.Export(translator, **(self.export_options | options))


def trained(path: Folders, **options: Any) -> Any:
    """Loads a Keras model like `Translator.from_pretrained`, as a `Translator` or as the engine of its task."""
    options = {name: value for name, value in options.items() if value is not None}
    # A run's engine depends on its task, which its config.json names. A SavedModel's depends on its tokenizer.
    opener, where = opener_of(path, {name: options[name] for name in SPECIAL if name in options}, rebuilds=True)
    if opener.is_trainable:
        return opener.open(where, **options)
    translator = Translator.from_pretrained(path, **options)
    tasks = registry.everything("tasks").values()
    return next((task.engine(translator) for task in tasks if task.recognizes(translator.tokenizer)), translator)
