"""The family of M2M100 and NLLB-200, for the registry."""

from tf_transformer.extensions.interop.families.m2m100.files import M2M100Checkpoint
from tf_transformer.extensions.interop.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.extensions.interop.families.m2m100.tokenizer import PIECES, M2M100Tokenizer
from tf_transformer.extensions.interop.families.m2m100.writing import write
from tf_transformer.models.families import Family

FAMILY = Family(
    "m2m100",
    M2M100Config,
    M2M100Transformer,
    M2M100Tokenizer,
    recognizes=lambda folder: (folder / PIECES).is_file(),
    load=lambda folder: M2M100Checkpoint(folder).load(),
    write=write,
)
