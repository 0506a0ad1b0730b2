"""The family of M2M100 and NLLB-200, for the registry."""

from pathlib import Path

from tf_transformer.families.family import Family, Pretrained
from tf_transformer.families.m2m100.files import PIECES, load_model, search_options
from tf_transformer.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.families.m2m100.tokenizer import M2M100Tokenizer


def load(folder: Path) -> Pretrained:
    """Read a checkpoint with its tokenizer.

    Raises:
        BadInput: the folder holds something else, or a kind of M2M100 that is not supported.
    """
    model, tokenizer = load_model(folder), M2M100Tokenizer.from_checkpoint(folder)
    options = search_options(folder)
    max_length = options.pop("max_length", None)
    return Pretrained(model, tokenizer, options, max_length)


FAMILY = Family(
    "m2m100",
    M2M100Config,
    M2M100Transformer,
    M2M100Tokenizer,
    recognizes=lambda folder: (folder / PIECES).is_file(),
    load=load,
)
