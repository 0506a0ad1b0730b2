"""The family of MarianMT, for the registry."""

import os

from tf_transformer.config import BadInput
from tf_transformer.extensions.interop.families.marian.files import MarianCheckpoint
from tf_transformer.extensions.interop.families.marian.model import MarianConfig, MarianTransformer
from tf_transformer.extensions.interop.families.marian.native import DECODER, NativeCheckpoint
from tf_transformer.extensions.interop.families.marian.tokenizer import SOURCE, MarianTokenizer
from tf_transformer.extensions.interop.families.marian.writing import write
from tf_transformer.models.families import Family
from tf_transformer.utils.files import user_path


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
