"""The family of MarianMT, for the registry."""

from pathlib import Path

from tf_transformer.families.family import Family, Pretrained
from tf_transformer.families.marian.files import load_marian, search_options
from tf_transformer.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.families.marian.tokenizer import SOURCE, MarianTokenizer


def load(folder: Path) -> Pretrained:
    """Read a checkpoint with its tokenizer.

    Raises:
        BadInput: the folder holds something else, or a kind of MarianMT that is not supported.
    """
    model, tokenizer = load_marian(folder), MarianTokenizer.from_checkpoint(folder)
    options = search_options(folder)
    max_length = options.pop("max_length", None)
    return Pretrained(model, tokenizer, options, max_length)


FAMILY = Family(
    "marian",
    MarianConfig,
    MarianTransformer,
    MarianTokenizer,
    recognizes=lambda folder: (folder / SOURCE).is_file(),
    load=load,
    owner="Helsinki-NLP",  # of OPUS-MT's models
)
