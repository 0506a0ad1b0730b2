"""Which model a configuration is of, and which tokenizer a file holds: the paper's, or MarianMT's."""

from pathlib import Path
from typing import Any

from tf_transformer.config import TransformerConfig
from tf_transformer.interop.marian.model import MarianConfig, MarianTransformer
from tf_transformer.interop.marian.tokenizer import MarianTokenizer
from tf_transformer.layers.int8 import policy_of
from tf_transformer.model import Transformer
from tf_transformer.text.tokenizer import Tokenizer

ZIP = b"PK"  # begins a zip archive; a `MarianTokenizer` is stored as one


def config_of(values: dict[str, Any]) -> TransformerConfig:
    """The configuration with these fields; the inverse of `to_dict`."""
    return MarianConfig(**values) if "num_decoder_layers" in values else TransformerConfig(**values)


def build_model(config: TransformerConfig, dtype: str | None = None) -> Transformer:
    """A built model with random weights. `dtype` is a dtype, "int8" included, or a policy of Keras; `None` means the
    current policy."""
    kind: type[Any] = MarianTransformer if isinstance(config, MarianConfig) else Transformer
    model = kind(config, dtype=policy_of(dtype))
    model.build()
    return model


def tokenizer_of(model: bytes) -> Tokenizer:
    """The tokenizer with this serialized model, its attribute `model`.

    Raises:
        BadInput: the bytes are no tokenizer.
    """
    return _kind_of(model)(model)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a tokenizer from a file, such as a run's tokenizer.model.

    Raises:
        FileNotFoundError: there is no file.
        BadInput: it holds something else.
    """
    path = Path(path)
    return _kind_of(path.read_bytes() if path.is_file() else b"").load(path)


def _kind_of(model: bytes) -> type[Tokenizer]:
    return MarianTokenizer if model.startswith(ZIP) else Tokenizer
