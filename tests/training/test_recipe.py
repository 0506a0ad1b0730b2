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
    assert recipe_of("A_h4", "translation") == RECIPES["base"]
    assert recipe_of("tiny", "parsing") == dataclasses.replace(RECIPES["parsing_wsj"], steps=800)
    assert RECIPES["base"].steps == 100_000 and RECIPES["big"].steps == 300_000  # section 5.2
    with pytest.raises(tt.BadInput, match=r"preset: expected one of base, .* for translation; got 'parsing_small'"):
        recipe_of("parsing_small", "translation")
    with pytest.raises(tt.BadInput, match=r"preset: expected one of base, .*parsing_semi.* for parsing; got 'huge'"):
        recipe_of("huge", "parsing")
