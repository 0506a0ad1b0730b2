"""A run in stages, each with a text, a dropout and a learning rate of its own."""

import dataclasses
from typing import Any

from examples.multi30k.corpus import StagedCorpus
from tf_transformer.runs.trainer import Trainer


@dataclasses.dataclass
class StagedTrainer(Trainer):
    """Trains a run with dropout that grows from 0; each stage is a trainer of its own.

    Attributes:
        corpus: what it learns from, and by which methods.
        whole: of a stage, the trainer of the whole run, which is what config.json describes.
    """

    corpus: StagedCorpus
    whole: Trainer | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return self.whole.settings if self.whole else super().settings

    @property
    def step(self) -> int:
        """That of the newest checkpoint; 0 if there is none."""
        newest = self.run.newest()
        return newest[1]["step"] if newest else 0

    def learn_both_directions(self) -> "StagedTrainer":
        """Train, or go on, for the bidirectional steps alone and without cooldown. Returns the last stage."""
        corpus = StagedCorpus(self.corpus.text, self.corpus.methods)
        recipe = dataclasses.replace(self.recipe, steps=corpus.methods.bidirectional_steps, cooldown_steps=0)
        return dataclasses.replace(self, corpus=corpus, recipe=recipe, whole=self)._learn(self.config.dropout)

    def learn(self) -> "StagedTrainer":
        """Train, or go on, to the end, from what the teachers say if there are any. Returns the last stage."""
        return self._learn(self.corpus.methods.student_dropout if self.corpus.teachers else self.config.dropout)

    def _learn(self, dropout: float) -> "StagedTrainer":
        steps = self.recipe.steps or self.config.train_steps
        stages = dropout_stages(dropout, self.corpus.methods.dropout_steps, self.recipe.interval(steps), steps)
        for until, rate in stages.items():
            config = dataclasses.replace(self.config, dropout=rate)
            stage = dataclasses.replace(self, config=config, whole=self.whole or self)
            if until == steps or stage.step < until:
                print(f"to step {until:,} with P_drop = {rate:.2g}")
                stage.fit(until)
        return stage


def dropout_stages(rate: float, over: int, interval: int, steps: int) -> dict[int, float]:
    """How dropout grows: by a third of its rate after each third of `over` steps, from none.

    Args:
        rate: P_drop at the end.
        over: steps in which it grows; a third ends at the checkpoint that follows.
        interval: steps from one checkpoint to the next.
        steps: all of them.

    Returns:
        P_drop of each stage, by the stage's last step.
    """
    ends = [-(-over * third // (3 * interval)) * interval for third in (1, 2, 3)]
    stages: dict[int, float] = {}
    for third, end in enumerate([*ends, steps]):
        stages.setdefault(min(end, steps), rate * third / 3)
    return stages
