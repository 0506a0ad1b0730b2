"""The family of MarianMT, for the registry."""

import os

from tf_transformer.base.files import user_path
from tf_transformer.config import BadInput
from tf_transformer.families.family import Family
from tf_transformer.families.marian.files import MarianCheckpoint
from tf_transformer.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.families.marian.native import DECODER, NativeCheckpoint
from tf_transformer.families.marian.tokenizer import SOURCE, MarianTokenizer
from tf_transformer.families.marian.writing import write


def checkpoint_in(folder: str | os.PathLike[str]) -> MarianCheckpoint:
    """The checkpoint in a folder, in the format of Hugging Face, or else in Marian's own.

    Raises:
        BadInput: there is none.
    """
    folder = user_path(folder)
    for name, kind in (("config.json", MarianCheckpoint), (DECODER, NativeCheckpoint)):
        if (folder / name).is_file():
            return kind(folder)
    raise BadInput(f"expected a checkpoint of MarianMT, found neither config.json nor {DECODER} in {folder}")


FAMILY = Family(
    "marian",
    MarianConfig,
    MarianTransformer,
    MarianTokenizer,
    recognizes=lambda folder: (folder / SOURCE).is_file(),
    load=lambda folder: checkpoint_in(folder).load(),
    write=write,
    owner="Helsinki-NLP",  # of OPUS-MT's models
)
