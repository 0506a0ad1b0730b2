"""Recipes: number of steps, interval of checkpoints, and the recipes of presets."""

import dataclasses

import pytest

import tf_transformer as tt
from tf_transformer.training.recipe import RECIPES, recipe_of


def test_a_recipe_has_steps_or_epochs():
    with pytest.raises(tt.BadInput, match="expected steps or epochs, got 1,000 steps and 2 epochs"):
        tt.Recipe(steps=1_000, epochs=2)


def test_a_moving_average_is_not_averaged_again():
    assert tt.Recipe().last_step(1) == 100_000  # the paper's
    assert tt.Recipe(epochs=3).last_step(7) == 21
    assert tt.Recipe().averaged == 5 and tt.Recipe(ema_momentum=0.9).averaged == 1
    assert tt.Recipe(average_last=3).averaged == tt.Recipe(ema_momentum=0.9, average_last=3).averaged == 3


@pytest.mark.parametrize(
    ("steps", "every", "interval"),
    [(800, 80, 80), (810, 80, 81), (7, 3, 4), (2, 80, 2), (800, None, 40), (100_000, None, 1_493), (9, None, 1)],
)
def test_the_last_checkpoint_is_at_the_end(steps, every, interval):
    assert tt.Recipe(eval_every=every).interval(steps) == interval
    assert tt.Recipe(eval_every=every).interval(steps) * round(steps / interval + 0.49) >= steps


def test_recipes_of_presets():
    assert set(RECIPES) - {"finetune"} <= set(tt.PRESETS)
    assert recipe_of("A_h4") == RECIPES["base"]
    assert RECIPES["base"].steps == 100_000 and RECIPES["big"].steps == 300_000  # section 5.2
    with pytest.raises(tt.BadInput, match=r"^preset: expected one of base, .*; got 'parsing_small'$"):
        recipe_of("parsing_small")


@pytest.mark.extensions
def test_presets_of_parsers():
    """Section 6.3: "4-layer transformer with d_model = 1024", of 16,000 and 32,000 tokens."""
    from tf_transformer.extensions.parsing.presets import PRESETS as OF_PARSERS
    from tf_transformer.extensions.parsing.presets import RECIPES as RECIPES_OF_PARSERS
    from tf_transformer.extensions.parsing.presets import plan_of

    assert OF_PARSERS.keys() == RECIPES_OF_PARSERS.keys() and not OF_PARSERS.keys() & tt.PRESETS.keys()
    for name, size in {"parsing_wsj": 16_000, "parsing_semi": 32_000}.items():
        config, recipe = plan_of(name)
        assert (config.num_layers, config.d_model, config.vocab_size) == (4, 1024, size)
        assert recipe == RECIPES_OF_PARSERS[name]
    recipe = dataclasses.replace(RECIPES_OF_PARSERS["parsing_wsj"], steps=800)
    assert plan_of("tiny") == (tt.PRESETS["tiny"], recipe)
    with pytest.raises(tt.BadInput, match=r"^preset: expected one of parsing_wsj, .*; got 'huge'$"):
        plan_of("huge")
