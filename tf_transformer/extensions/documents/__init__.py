"""Documents: texts of any length, with markup, around an engine that translates sentences."""

from tf_transformer.extensions.documents.document import translate
from tf_transformer.extensions.documents.marked import sentences_in

__all__ = ["sentences_in", "translate"]
