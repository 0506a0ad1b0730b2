"""Which model a configuration is of, and which tokenizer a file holds: the paper's, or MarianMT's."""

from pathlib import Path
from typing import Any

from tf_transformer.config import TransformerConfig
from tf_transformer.interop.marian import MarianConfig, MarianTransformer
from tf_transformer.interop.marian_tokenizer import MarianTokenizer
from tf_transformer.layers.int8 import policy_of
from tf_transformer.model import Transformer
from tf_transformer.tokenizer import Tokenizer

ZIP = b"PK"  # begins a zip archive, which is what a `MarianTokenizer` is kept in


def config_of(values: dict[str, Any]) -> TransformerConfig:
    """The configuration of these fields, as `to_dict` gives them."""
    return MarianConfig(**values) if "num_decoder_layers" in values else TransformerConfig(**values)


def build_model(config: TransformerConfig, dtype: str | None = None) -> Transformer:
    """A built model of random weights; `dtype` is a dtype, int8 among them, or a policy of Keras,
    `None` its current one."""
    kind = MarianTransformer if isinstance(config, MarianConfig) else Transformer
    model = kind(config, dtype=policy_of(dtype))
    model.build()
    return model


def tokenizer_of(model: bytes) -> Tokenizer:
    """The tokenizer whose `model` this is.

    Raises:
        BadInput: it is none.
    """
    return _kind_of(model)(model)


def load_tokenizer(path) -> Tokenizer:
    """The tokenizer that was saved in a file, as by a run.

    Raises:
        FileNotFoundError: there is no file.
        BadInput: it holds something else.
    """
    path = Path(path)
    return _kind_of(path.read_bytes() if path.is_file() else b"").load(path)


def _kind_of(model: bytes) -> type[Tokenizer]:
    return MarianTokenizer if model.startswith(ZIP) else Tokenizer
