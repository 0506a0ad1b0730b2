"""SentencePiece's engine, in Python and in TensorFlow graphs."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import sentencepiece

from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.terminal import quiet_import, quiet_stderr
from tf_transformer.utils.values import BadInput

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazily("tensorflow", "a tokenizer of tensors")

MANY = 1_000  # texts that are worth several threads


def encoded_by(processor: sentencepiece.SentencePieceProcessor, texts: list[str], kind: type) -> Any:
    return processor.encode(texts, out_type=kind, num_threads=threads_for(texts))


def threads_for(texts: Sequence[Any]) -> int:
    """Returns SentencePiece's number of threads, -1 for all cores. Starting threads takes longer than a few texts."""
    return -1 if len(texts) >= MANY else 1


def engine_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Returns SentencePiece's tokenizer with a serialized model whose pieces are UTF-8, or raises `BadInput`."""
    if hasattr(sentencepiece, "set_min_log_level"):
        sentencepiece.set_min_log_level(1)  # hides warnings about models without normalization
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        if not processor.id_to_piece(list(range(processor.vocab_size()))):
            raise ValueError("no pieces")
    except (RuntimeError, ValueError) as error:
        raise BadInput(f"expected a SentencePiece model, got {len(model)} other bytes") from error
    return processor


def durable_tokenizer(model: bytes, pieces: bool = False) -> Any:
    """Returns a tensorflow-text tokenizer, which makes ids or `pieces`, of a serialized model."""
    check_tensorflow_text()
    import tensorflow_text
    from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

    # Without a `shared_name` the resource belongs to the eager kernel, which `tf.random.set_seed` and
    # `keras.utils.set_random_seed` delete (tensorflow/text issues 570 and 802). The public class takes no
    # name, so its resource is replaced.
    name = "sentencepiece_" + hashlib.sha256(model).hexdigest()[:16]

    def create() -> Any:
        return gen_sentencepiece_tokenizer.sentencepiece_op(model=model, shared_name=name)

    with quiet_stderr():  # hides warnings about models without normalization
        tokenizer = tensorflow_text.SentencepieceTokenizer(model, out_type=tf.string if pieces else tf.int32)
        tokenizer._model_resource._create_resource = create
        tokenizer._model_resource._resource_handle = create()
    return tokenizer


def check_tensorflow_text() -> None:
    """Imports tensorflow-text, whose operations this package's SavedModels need, or raises `BadInput`."""
    try:
        with quiet_import():
            import tensorflow_text  # noqa: F401
    except (ImportError, tf.errors.NotFoundError) as error:
        reason, version = str(error).splitlines()[0], tf.__version__
        minor = ".".join(version.split(".")[:2])
        message = f"text: expected tensorflow-text {minor}, that of TensorFlow {version}: {reason}"
        raise BadInput(message) from error
