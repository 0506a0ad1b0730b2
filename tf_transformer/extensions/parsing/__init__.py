"""English constituency parsing (section 6.3)."""

from tf_transformer.extensions.parsing.presets import PRESETS, RECIPES

__all__ = ["PRESETS", "RECIPES"]
