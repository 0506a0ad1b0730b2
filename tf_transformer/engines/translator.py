"""Text in, text out: a model, its tokenizer and its search as one value, in Python and as a SavedModel."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import tensorflow as tf

from tf_transformer.base.type_names import Dtype, Folders, Tensor
from tf_transformer.base.values import Count, Positive, Seed, checked
from tf_transformer.text.batching import by_batch, warn_of_truncated
from tf_transformer.text.text_decoder import TextDecoder
from tf_transformer.text.text_model import TextModel
from tf_transformer.text.tokenizer import LANGUAGES, Tokenizer, check_languages

if TYPE_CHECKING:
    from tf_transformer.exports.contract import Export


class Translation(NamedTuple):
    """One of the n best translations of a sentence."""

    text: str
    score: float  # log-probability / length penalty
    log_prob: float
    finished: bool  # the end symbol was reached


class Translator(TextModel):
    """Translates texts: translator(["Hello world."]) gives ["Hallo Welt."]. `save` exports the same function.

    A translator does not change: `replace` gives another one. Only the model's weights are read at every call, so the
    model may go on training.

    Args:
        model: a built `Transformer` or `Ensemble`.
        tokenizer: the one it was trained with.
        batch_size: sentences a batch when called from Python.
        export_options: default arguments of `export`, such as the origin and the licence of a pretrained model.
        options: of the search, listed in `text.search_options` with their defaults; each is also an attribute. Among
            them:

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
        super().__init__(model, tokenizer, **options)
        self.batch_size = batch_size
        own = LANGUAGES if tokenizer.languages else ()  # the tokenizer has them
        self.export_options = {name: value for name, value in (export_options or {}).items() if name not in own}

    @classmethod
    @checked
    def from_run(cls, path: Folders, average_last: Count = 5, **options: Any) -> "Translator":
        """Load a run of trainers.translation, in float32; `loading.from_run` has the arguments."""
        from tf_transformer import loading

        return loading.from_run(path, average_last, **options)

    @classmethod
    def from_saved_model(cls, path: str | os.PathLike[str], **options: Any) -> "Translator":
        """Load what `save` wrote; `loading.from_saved_model` has the arguments."""
        from tf_transformer import loading

        return loading.from_saved_model(path, **options)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], **options: Any) -> "Translator":
        """Load a pretrained model from a folder or the hub; `loading.from_pretrained` has the arguments."""
        from tf_transformer import loading

        return loading.from_pretrained(name, **options)

    @classmethod
    def from_marian(cls, name: str | os.PathLike[str], **options: Any) -> "Translator":
        """Load a MarianMT checkpoint, for example one of OPUS-MT; `loading.from_pretrained` has the arguments.

        Args:
            name: its folder, as Hugging Face's `transformers` or Marian itself writes it, with source.spm, target.spm
                and the files that `load_marian` reads; or its name on the Hugging Face hub.
            options: of `loading.from_pretrained`; the default beam size is the checkpoint's.
        """
        from tf_transformer import loading

        return loading.from_pretrained(name, family="marian", **options)

    def replace(self, **changes: Any) -> "Translator":
        """Another translator, with some of this one's arguments changed: `translator.replace(beam_size=1)`."""
        arguments: dict[str, Any] = {"model": self.model, "tokenizer": self.tokenizer, **self.options}
        arguments |= {"batch_size": self.batch_size, "export_options": self.export_options}
        return Translator(**(arguments | changes))

    @checked
    def astype(self, dtype: Dtype) -> "Translator":
        """This translator with weights stored and multiplied in float32, bfloat16, float16 or int8.

        Attention weights, logits after their product, search and scores stay float32. int8 (`layers.int8`) is only
        for products with weights. A change of int8 weights after the first product has no effect.

        Raises:
            BadInput: the dtype is unknown, or TensorFlow cannot multiply 8-bit integers here.
        """
        return self.replace(model=self.model.astype(dtype))

    @overload  # a string is a sequence of strings, too
    def __call__(self, texts: str, **languages: str) -> str: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, texts: Sequence[str], **languages: str) -> list[str]: ...

    def __call__(self, texts: str | Sequence[str], **languages: str) -> str | list[str]:
        """The best translation of each text. A string gives a string, a list a list.

        Args:
            texts: sentences.
            languages: source_language and target_language, of a model of several; by default the translator's own.
        """
        if isinstance(texts, str):
            return self([texts], **languages)[0]
        return [best[0].text if best else "" for best in self.n_best(texts, 1, **languages)]

    @checked
    def n_best(
        self, texts: Sequence[str], n: Count, prefixes: Sequence[str] | None = None, **languages: str
    ) -> list[list[Translation]]:
        """The n best translations of each text, best first; at most beam_size.

        Args:
            texts: sentences.
            n: how many.
            prefixes: whole words that each text's translations begin with; "" means anything. An empty text has none.
            languages: as for a call.
        """

        def search(model: TextModel, text: Tensor, *prefix_and_n: Tensor) -> Any:
            (source, source_length, truncated), (*prefix_text, n) = model.source(text), prefix_and_n
            prefix = model.target(*prefix_text).to_tensor() if prefix_text else None
            found = model.search(source, source_length, n_best=self.beam_size, exact_n=n, prefix=prefix)
            return truncated, tf.nest.map_structure(lambda part: part[:, :n], found)

        columns = [texts] if prefixes is None else self.with_prefixes(texts, prefixes, languages)
        count = tf.constant(min(n, self.beam_size))
        return [
            [Translation(*values) for k, (length, *values) in enumerate(rows) if k == 0 or length]
            for rows in self._by_batch(f"best, {len(columns)}", search, columns, languages, count)
        ]

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
            languages: as for a call.
        """

        def draw(model: TextModel, text: Tensor, seeds: Tensor, *temperature_and_k: Tensor) -> Any:
            source, source_length, truncated = model.source(text)
            return truncated, model.drawn(source, source_length, seeds, *temperature_and_k)

        given = [tf.constant(temperature, tf.float32), *([] if k is None else [tf.constant(k)])]
        rows = self._by_batch(f"sample, {len(given)}", draw, [texts], languages, *given, seed=seed)
        return [row[0][1] for row in rows]

    def _by_batch(
        self,
        name: str,
        function: Callable[..., Any],
        columns: list[Sequence[str]],
        languages: Mapping[str, str],
        *options: Any,
        seed: int | None = None,
    ) -> list[list[tuple[Any, ...]]]:
        """Call a function on batches of texts of similar length.

        It takes a text model, columns of texts [B], with a seed for all also one of each row [B], and options; it
        returns which texts are truncated, bool [B], and `Hypotheses`.

        Returns:
            for each row N tuples (length, text, score, log_prob, finished).
        """
        check_languages(languages, "translator.replace({0}=...) or tt.load(..., {0}=...) sets it")
        tokenizer = self.tokenizer.for_languages(**languages) if languages else self.tokenizer
        spoken = [tf.constant([language]) for language in tokenizer.spoken()]

        def texts_and_more(*arguments: Tensor) -> Any:
            model = self.speaking(*arguments[len(arguments) - len(spoken) :])
            truncated, found = function(model, *arguments[: len(arguments) - len(spoken)])
            return truncated, found.lengths, self.texts(found.ids), found.scores, found.log_probs, found.finished

        kinds = [tf.string] * len(columns) + [tf.uint64] * (seed is not None)
        specs = [*(tf.TensorSpec([None], kind) for kind in kinds), *map(tf.type_spec_from_value, (*options, *spoken))]
        traced = self.traced(name, texts_and_more, input_signature=specs)
        columns = [list(column) for column in columns]
        rows = by_batch(lambda *batch: traced(*batch, *options, *spoken), columns, self.batch_size, seed)
        warn_of_truncated(columns[0], [truncated for truncated, *_ in rows])
        return [
            list(zip(lengths, (text.decode() for text in texts), *others, strict=True))
            for _, lengths, texts, *others in rows
        ]

    def save(self, path: str | os.PathLike[str], format: str = "savedmodel", **options: Any) -> None:
        """Write this translator in a format of `exports.formats`, whole or not at all.

        Args:
            path: must not exist; of a SavedModel <name>/<integer version>, TensorFlow Serving's layout.
            format: "savedmodel", the serving contract (savedmodels/README.md), "litert" or "ctranslate2".
            options: of the format; those of a SavedModel are the arguments of `export`.
        """
        from tf_transformer.exports.formats import format_of

        format_of(format).save(self, path, **options)

    def export(self, **options: Any) -> "Export":
        """The export that `save` writes; `exports.contract.Export` has the options. Its weights have what LoRA has
        learned."""
        from tf_transformer.exports.contract import Export

        model = self.model.merged()
        return Export(self if model is self.model else self.replace(model=model), **(self.export_options | options))
