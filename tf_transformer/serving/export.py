"""The serving contract: what a SavedModel takes and gives (savedmodels/README.md has the tables).

Every input is [batch], or [1] for an option; every output's first axis is the batch and its other axes are fixed, so
that TensorFlow Serving can merge requests. Whatever stands in a row, no row raises: its neighbours would fail with it.
"""

import functools

import tensorflow as tf

from tf_transformer.config import BadInput
from tf_transformer.search import length_penalty as penalty_of
from tf_transformer.tokenizer import EOS_ID
from tf_transformer.version import __version__

CONTRACT = "1"
MAX_ALPHA = 5.0


class Root(tf.Module):
    """The root of a SavedModel; its functions are the signatures, `model_info` is one of them.

    It owns raw `tf.Variable`s and reaches Keras objects by closure alone: tracked as attributes, their weights would be
    stored twice, and TensorFlow Serving would not restore those that the functions read.

    Args:
        model: a built `Transformer`.
        tokenizer: its `Tokenizer`.
        functions: from texts, and from options that have defaults, to the outputs.
        warm: by name, the signatures that a server tries before it is ready, each with the options it is given.
        facts: what `model_info` answers besides what is known here.
    """

    def __init__(self, model, tokenizer, functions, warm: dict[str, dict], **facts):
        super().__init__()
        self.config = model.config
        self.weights = [variable.value for variable in model.weights]
        self.tokenizer = tokenizer.op
        self.first_piece = tokenizer.first_piece
        self.warm = warm
        self.facts: dict[str, object] = {}
        self.describe(
            **facts,
            contract=CONTRACT,
            vocab_size=tokenizer.vocab_size,
            tokenizer=tokenizer.fingerprint,
            parameters=model.count_params(),
            dtype=model.dtype_policy.name,
            framework_version=__version__,
            tf_version=tf.__version__,
        )

        def model_info(key):
            return {"value": self.table.lookup(tf.ensure_shape(key, [None]))}

        kinds = {"beam_size": tf.int32, "length_penalty": tf.float32, "max_length": tf.int32}
        self.names = []
        for function in (*functions, model_info):
            names = function.__code__.co_varnames[: function.__code__.co_argcount]
            inputs = [tf.TensorSpec([None], kinds.get(name, tf.string), name) for name in names]
            # Attributes, too, so that tf.saved_model.load(path).translate(text) knows the defaults.
            setattr(self, function.__name__, tf.function(function, input_signature=inputs, autograph=False))
            self.names.append(function.__name__)

    @property
    def signatures(self) -> dict:
        """By name, what `tf.saved_model.save` takes."""
        return {name: getattr(self, name) for name in self.names}

    def describe(self, **facts) -> None:
        """Add to what `model_info` answers; before a signature is called or saved."""
        self.facts = {**self.facts, **facts}
        values = tf.lookup.KeyValueTensorInitializer(list(self.facts), [str(value) for value in self.facts.values()])
        self.table = tf.lookup.StaticHashTable(values, "", name="model_info")


class Export(Root):
    """A translator's SavedModel.

    Args:
        translator: a `Translator`; its beam size and alpha become the defaults.
        n_best: translations that `translate` gives, fixed by the export.
        max_beam_size: greatest beam size that a request may ask for.
        max_length: greatest number of symbols in a translation that a request may ask for, the end symbol included; and
            the default.
        facts: what `model_info` answers besides what is known here, e.g. source_language, target_language, step, bleu.
    """

    def __init__(self, translator, n_best: int = 4, max_beam_size: int = 16, max_length: int = 256, **facts):
        if not 1 <= min(n_best, translator.beam_size) <= max(n_best, translator.beam_size) <= max_beam_size:
            raise BadInput(
                f"expected n_best and beam_size of 1 to max_beam_size={max_beam_size}, "
                f"got {n_best} and {translator.beam_size}"
            )
        if max_length < 1 or translator.alpha > MAX_ALPHA:
            raise BadInput(
                f"expected max_length of at least 1 and alpha of at most {MAX_ALPHA}, "
                f"got {max_length} and {translator.alpha}"
            )
        model, tokenizer = translator.model, translator.tokenizer
        defaults = {  # of the options of `translate`
            "beam_size": translator.beam_size,
            "length_penalty": float(translator.alpha),
            "max_length": max_length,
        }
        default_beam_size, default_alpha, default_max_length = (tf.constant([v]) for v in defaults.values())

        traced_once = functools.partial(tf.function, autograph=False)  # for all signatures that call it alike
        force = traced_once(translator.force)

        @traced_once
        def search(text, beam_size, alpha, length, n):
            """Options out of range are clipped: an error would fail the whole of a server's batch."""
            text = tf.ensure_shape(text, [None])
            alpha = _per_row("length_penalty", alpha, text)
            source, source_length, truncated = translator.source(text)
            found = translator.search(
                source,
                source_length,
                tf.clip_by_value(_per_row("beam_size", beam_size, text), 1, max_beam_size),
                # The minimum and maximum of a NaN are NaN, which would come back as the score.
                tf.clip_by_value(tf.where(tf.math.is_nan(alpha), default_alpha, alpha), 0.0, MAX_ALPHA),
                tf.clip_by_value(_per_row("max_length", length, text), 1, max_length),
                n,
            )
            return source, source_length, truncated, found

        def serving_default(text):
            *_, truncated, found = search(text, default_beam_size, default_alpha, default_max_length, 1)
            translation = translator.texts(found.ids)[:, 0]
            return {"translation": translation, "score": found.scores[:, 0], "truncated": truncated}

        def translate(text, beam_size=default_beam_size, length_penalty=default_alpha, max_length=default_max_length):
            _, source_length, truncated, found = search(text, beam_size, length_penalty, max_length, n_best)
            return {
                "translations": translator.texts(found.ids),
                "scores": found.scores,
                "log_probs": found.log_probs,
                "lengths": found.lengths - tf.cast(found.finished, tf.int32),
                "finished": found.finished,
                "source_length": source_length,
                "truncated": truncated,
            }

        width = max_length

        def translate_details(
            text, beam_size=default_beam_size, length_penalty=default_alpha, max_length=default_max_length
        ):
            source, *_, found = search(text, beam_size, length_penalty, max_length, n_best)
            B, L = tf.shape(source)[0], tf.shape(found.ids)[2]
            ids, sources = tf.reshape(found.ids, [B * n_best, L]), tf.repeat(source, n_best, axis=0)
            lengths = tf.reshape(found.lengths - tf.cast(found.finished, tf.int32), [-1, 1])
            real = tf.range(L) < lengths  # [B * N, L]
            log_probs, attention = force(sources, ids)
            log_probs = tf.where(real, log_probs, 0.0)[:, :width]
            log_probs = tf.pad(log_probs, [[0, 0], [0, width - tf.shape(log_probs)[1]]])

            def each(flat):
                return tf.ensure_shape(tf.reshape(flat, [B, n_best]), [None, n_best])

            return {
                "tokens": each(_joined(tokenizer.pieces(tf.ragged.boolean_mask(ids, real)))),
                "alignments": each(_alignments(attention, sources, real)),
                "token_scores": tf.ensure_shape(tf.reshape(log_probs, [B, n_best, width]), [None, n_best, width]),
                "source_tokens": _joined(tokenizer.pieces(tf.ragged.boolean_mask(source, source > EOS_ID))),
            }

        def score(source, target):
            source_ids, *_ = translator.source(tf.ensure_shape(source, [None]))
            target_ids, *_ = translator.with_end(tokenizer.tokenize_target(tf.ensure_shape(target, [None])))
            log_probs, _ = force(source_ids, target_ids)
            real = target_ids > 0
            log_prob = tf.reduce_sum(tf.where(real, log_probs, 0.0), axis=1)
            length = tf.reduce_sum(tf.cast(real, tf.int32), axis=1)
            return {"log_prob": log_prob, "score": log_prob / penalty_of(length, default_alpha), "length": length - 1}

        def tokenize(text):
            ids = tokenizer.tokenize(tf.ensure_shape(text, [None]))
            return {"tokens": _joined(tokenizer.pieces(ids)), "length": tf.cast(ids.row_lengths(), tf.int32)}

        def detokenize(tokens):
            pieces = tf.strings.split(tf.ensure_shape(tokens, [None]))
            return {"text": tokenizer.detokenize(tokenizer.ids(pieces))}

        super().__init__(
            model,
            tokenizer,
            (serving_default, translate, translate_details, score, tokenize, detokenize),
            {"serving_default": {}, "translate": defaults},
            **facts,
            **defaults,
            max_beam_size=max_beam_size,
            n_best=n_best,
            extra_length=translator.extra_length,
            max_source_length=translator.max_source_length,
        )


class ParserExport(Root):
    """A parser's SavedModel.

    Args:
        parser: a `Parser`; its beam size, α and greatest lengths are fixed by the export.
        facts: what `model_info` answers besides what is known here, e.g. step, f1.
    """

    def __init__(self, parser, **facts):
        def parse(text):
            tree, score, truncated = parser.parse(tf.ensure_shape(text, [None]))
            return {"tree": tree, "score": score, "truncated": truncated}

        def serving_default(text):
            return parse(text)

        translator = parser.translator
        super().__init__(
            translator.model,
            translator.tokenizer,
            (serving_default, parse),
            {"serving_default": {}, "parse": {}},
            **facts,
            beam_size=translator.beam_size,
            length_penalty=float(translator.alpha),
            extra_length=translator.extra_length,
            max_source_length=translator.max_source_length,
        )


def _per_row(name, option, text):
    """An option [1] or [batch] as [batch]."""
    option = tf.ensure_shape(option, [None])
    B, given = tf.shape(text)[0], tf.shape(option)[0]
    message = f"{name}: expected a vector of length 1 or of the batch size"
    with tf.control_dependencies([tf.debugging.Assert((given == 1) | (given == B), [message, given, B])]):
        return tf.broadcast_to(tf.cond(given == B, lambda: option, lambda: option[:1]), [B])


def _joined(pieces) -> tf.Tensor:
    return tf.strings.reduce_join(pieces, axis=-1, separator=" ")


def _alignments(attention, source, real) -> tf.Tensor:
    """For each output token the source token it attends to most, in Pharaoh form "s-t s-t ...": string [B].

    Args:
        attention: [B, T, S].
        source: ids [B, S].
        real: bool [B, T], which output tokens there are.
    """
    attention = tf.where((source > EOS_ID)[:, tf.newaxis], attention, -1.0)
    attention = tf.pad(attention, [[0, 0], [0, 0], [0, 1]], constant_values=-1.0)  # an empty batch has no columns
    best = tf.argmax(attention, axis=-1, output_type=tf.int32)  # [B, T]
    place = tf.broadcast_to(tf.range(tf.shape(best)[1]), tf.shape(best))
    pairs = tf.strings.join([tf.strings.as_string(best), tf.strings.as_string(place)], "-")
    return _joined(tf.ragged.boolean_mask(pairs, real))
