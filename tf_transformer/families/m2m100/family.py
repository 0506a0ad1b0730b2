"""The family of M2M100 and NLLB-200, for the registry."""

from tf_transformer.families.family import Family
from tf_transformer.families.m2m100.files import M2M100Checkpoint
from tf_transformer.families.m2m100.model import M2M100Config, M2M100Transformer
from tf_transformer.families.m2m100.tokenizer import PIECES, M2M100Tokenizer
from tf_transformer.families.m2m100.writing import write

FAMILY = Family(
    "m2m100",
    M2M100Config,
    M2M100Transformer,
    M2M100Tokenizer,
    recognizes=lambda folder: (folder / PIECES).is_file(),
    load=lambda folder: M2M100Checkpoint(folder).load(),
    write=write,
)
