"""A language model behind a tokenizer: a text in, and longer texts out."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from tf_transformer.decoding.beams import Hypotheses
from tf_transformer.decoding.search import OPTIONS, beam_search
from tf_transformer.extensions.text_models.language_model import LanguageModel, beams_of
from tf_transformer.extensions.text_models.text_model import Served
from tf_transformer.inference.engine import strings_in
from tf_transformer.masks import PAD_ID
from tf_transformer.tokenizers.strings import BYTES_OF_A_TOKEN, SPACE_IN_GRAPH, WORD, utf8, utf8_in_graph
from tf_transformer.tokenizers.tokenizer import BOS_ID, EOS_ID, Tokenizer
from tf_transformer.utils.files import encoded
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.type_names import Tensor
from tf_transformer.utils.values import BadInput, Count, checked

tf = lazily("tensorflow", "a SavedModel")


class TextGenerator(Served):
    """A language model that continues texts, in Python and as a SavedModel.

    A result is the text as it was given, then its continuation. Invalid UTF-8 becomes spaces.

    The SavedModel's `serving_default` returns the best `text`, its `score`, and `truncated`. `generate` returns `texts`
    and `scores` of the `n_best` ones. A text becomes BOS and its tokens.

    Args:
        language_model: Trained `LanguageModel`.
        tokenizer: Tokenizer that it was trained with, on rows of BOS, tokens and EOS.
        max_length: Maximum number of new tokens, EOS included.
        max_prompt_length: Maximum number of tokens of a text, BOS included. Only the last ones of a longer text are
            read.
        n_best: Number of texts that the signature `generate` returns.
        options: Options of `tt.decoding.beam_search`, such as `beam_size`.

    Examples:
        >>> generator = tt.TextGenerator(language_model, tokenizer, max_length=32, beam_size=4)
        >>> generator(["The old woman"])
        ['The old woman opens the red door.']
        >>> generator.save("savedmodels/generator/1")
    """

    @checked
    def __init__(
        self,
        language_model: LanguageModel,
        tokenizer: Tokenizer,
        max_length: Count = 64,
        max_prompt_length: Count = 192,
        n_best: Count = 1,
        **options: Any,
    ) -> None:
        self.beam_size = beams_of(n_best, options)
        self.language_model, self.tokenizer, self.options = language_model, tokenizer, options
        self.max_length, self.max_prompt_length, self.n_best = max_length, max_prompt_length, n_best
        # An export reads these attributes of its model.
        self.model = SimpleNamespace(weights=language_model.weights, dtype_policy=language_model.layers[0].dtype_policy)
        self._most_bytes = BYTES_OF_A_TOKEN * max_prompt_length  # Tokenizing megabytes takes seconds.
        language_model.padded([[BOS_ID] * max_prompt_length], max_length)  # raises if there are too few positions

    def encode(self, texts: Iterable[str | bytes]) -> list[list[int]]:
        """Returns prompts: BOS and the last tokens of each text."""
        rows = self.tokenizer.encode([encoded(text)[-self._most_bytes :] for text in strings_in(texts)])
        return [[BOS_ID, *row[max(0, len(row) - self.max_prompt_length + 1) :]] for row in rows]

    @checked
    def __call__(self, texts: str | bytes | Iterable[str | bytes], **options: Any) -> Any:
        """Returns the best continued text of each text. One text returns one text.

        Args:
            texts: One text or several.
            options: Arguments of `LanguageModel.search`, or with `seed`, `temperature`, `k` or `p`, of
                `LanguageModel.sample`.
        """
        if isinstance(texts, str | bytes):
            return self([texts], **options)[0]
        texts = [*strings_in(texts)]
        prompts = self.encode(texts)
        random = options.keys() & {"seed", "temperature", "k", "p"}
        if random and (other := options.keys() & set(OPTIONS)):
            raise BadInput(f"options: expected those of either search or sampling, got {', '.join({*random, *other})}")
        continued = self.language_model.sample if random else self.language_model.search
        options = {"max_length": self.max_length, **({} if random else self.options), **options}
        outputs = continued(prompts, **options)
        ids = [prompt + best.ids for prompt, (best, *_) in zip(prompts, outputs, strict=True)]
        read, whole = self.tokenizer.decode(prompts), self.tokenizer.decode(ids)
        rows = zip(map(utf8, texts), read, whole, strict=True)
        return [text + _joined_to(text, output[len(begin) :]) for text, begin, output in rows]

    def signatures(self) -> dict[str, Callable[[Tensor], Any]]:
        return {"serving_default": self._serve, "generate": self._generate}

    def metadata(self) -> dict[str, Any]:
        return {"max_length": self.max_length, "max_prompt_length": self.max_prompt_length, "n_best": self.n_best}

    def _serve(self, text: Tensor) -> dict[str, Any]:
        texts, outputs, truncated = self._searched(text, 1)
        return {"text": texts[:, 0], "score": outputs.scores[:, 0], "truncated": truncated}

    def _generate(self, text: Tensor) -> dict[str, Any]:
        texts, outputs, truncated = self._searched(text, self.n_best)
        return {"texts": texts, "scores": outputs.scores, "finished": outputs.finished, "truncated": truncated}

    def _searched(self, text: Tensor, n_best: int) -> tuple[Any, Hypotheses, Any]:
        begin = tf.maximum(tf.strings.length(tf.ensure_shape(text, [None])) - self._most_bytes, 0)
        tokens = self.tokenizer.tokenize(tf.strings.substr(text, begin, tf.fill(tf.shape(begin), self._most_bytes)))
        most = self.max_prompt_length - 1
        last = tokens[:, -most:] if most else tokens[:, :0]
        prompts = tf.concat([tf.fill([tokens.nrows(), 1], BOS_ID), last], axis=1)
        length = tf.cast(prompts.row_lengths(), tf.int32)
        limits = self.max_length, self.beam_size, EOS_ID
        problem = self.language_model.problem(prompts.to_tensor(PAD_ID), length, *limits)
        outputs = beam_search(problem, n_best=n_best, **self.options)
        count = tf.size(length) * n_best
        ids = tf.RaggedTensor.from_tensor(tf.reshape(outputs.ids, [count, tf.shape(outputs.ids)[2]]))
        row = tf.range(count) // n_best  # tf.repeat takes no ragged tensors
        whole = self.tokenizer.detokenize(tf.concat([tf.gather(prompts, row), ids], axis=1))
        # As in `__call__`: the text, and what follows the tokens that were read.
        read = tf.gather(tf.strings.length(self.tokenizer.detokenize(prompts)), row)
        added = tf.strings.substr(whole, read, tf.strings.length(whole) - read)
        given = tf.gather(utf8_in_graph(text), row)
        ends = tf.strings.regex_full_match(given, rf"(?s)(.*{SPACE_IN_GRAPH})?")
        added = tf.where(ends, tf.strings.regex_replace(added, "^ +", ""), added)
        texts = tf.ensure_shape(tf.reshape(tf.strings.join([given, added]), [-1, n_best]), [None, n_best])
        return texts, outputs, (tokens.row_lengths() > most) | (begin > 0)


def _joined_to(text: str, added: str) -> str:
    """Returns a continuation without a second space, if the text ends with whitespace or is empty."""
    return added if WORD.search(text[-1:]) else added.lstrip(" ")
