"""Sizes and recipes of parsers: those of section 6.3, and of a parser that trains on one machine."""

import dataclasses

from tf_transformer import config
from tf_transformer.config import BIG, BadInput, TransformerConfig
from tf_transformer.training import recipe
from tf_transformer.training.recipe import Recipe
from tf_transformer.utils.values import checked

PRESETS = {
    "parsing_wsj": dataclasses.replace(BIG, num_layers=4, attention_dropout=0.1, vocab_size=16_000),
    "parsing_semi": dataclasses.replace(BIG, num_layers=4, attention_dropout=0.1, vocab_size=32_000),
    # Not in the paper: for treebanks of ten or twenty thousand trees.
    "parsing_small": TransformerConfig(2, 128, 512, 4, vocab_size=2_000),
}
RECIPES = {
    "parsing_small": Recipe(
        steps=14_000, batch_tokens=2_048, warmup_steps=600, learning_rate_factor=1.5, eval_every=1_000
    ),
    "parsing_wsj": Recipe(steps=300_000, eval_every=1_000),
    "parsing_semi": Recipe(steps=300_000, eval_every=1_000),
}


@checked
def plan_of(preset: str) -> tuple[TransformerConfig, Recipe]:
    """Returns size and recipe of a parser's preset, or of another one for parsing.

    Raises:
        BadInput: If the preset does not exist.
    """
    if preset in PRESETS:
        return PRESETS[preset], RECIPES[preset]
    if preset not in config.PRESETS:
        raise BadInput(f"preset: expected one of {', '.join((*PRESETS, *config.PRESETS))}; got {preset!r}")
    steps = recipe.recipe_of(preset).steps
    return config.PRESETS[preset], dataclasses.replace(RECIPES["parsing_wsj"], steps=steps)
