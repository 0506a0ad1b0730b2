"""Training in stages with different texts, dropout and learning rates."""

import dataclasses
from typing import Any

from examples.multi30k.corpus import StagedCorpus
from tf_transformer.training.recipe import PAPER_STEPS
from tf_transformer.training.trainer import Trainer


@dataclasses.dataclass
class StagedTrainer(Trainer):
    """Trains a run with dropout that grows from 0, with a separate trainer for each stage.

    Attributes:
        corpus: Texts and methods.
        whole: Trainer of the whole run, set in each stage. config.json has its settings.
    """

    corpus: StagedCorpus
    whole: Trainer | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return self.whole.settings if self.whole else super().settings

    @property
    def step(self) -> int:
        """Step of the newest checkpoint, or 0 without a checkpoint."""
        newest = self.run.newest()
        return newest[1]["step"] if newest else 0

    def learn_both_directions(self) -> "StagedTrainer":
        """Trains or resumes only the bidirectional steps, without cooldown, and returns the last stage."""
        corpus = dataclasses.replace(self.corpus, teachers=())
        recipe = dataclasses.replace(self.recipe, steps=corpus.methods.bidirectional_steps, cooldown_steps=0)
        return dataclasses.replace(self, corpus=corpus, recipe=recipe, whole=self)._learn(self.config.dropout)

    def learn(self) -> "StagedTrainer":
        """Trains or resumes to the end, with the teachers' translations if any, and returns the last stage."""
        return self._learn(self.corpus.methods.student_dropout if self.corpus.teachers else self.config.dropout)

    def _learn(self, dropout: float) -> "StagedTrainer":
        steps = self.recipe.steps or PAPER_STEPS
        stages = dropout_stages(dropout, self.corpus.methods.dropout_steps, self.recipe.interval(steps), steps)
        for until, rate in stages.items():
            config = dataclasses.replace(self.config, dropout=rate)
            stage = dataclasses.replace(self, config=config, whole=self.whole or self)
            if until == steps or stage.step < until:
                print(f"to step {until:,} with P_drop = {rate:.2g}")
                stage.fit(until)
        return stage


def dropout_stages(rate: float, over: int, interval: int, steps: int) -> dict[int, float]:
    """Returns the stages of dropout, which grows from 0 by a third of its rate after each third of `over` steps.

    Args:
        rate: P_drop at the end.
        over: Steps in which it grows. Each third ends at the next checkpoint.
        interval: Steps from one checkpoint to the next.
        steps: Steps of the whole training.

    Returns:
        P_drop of each stage, by the stage's last step.
    """
    ends = [-(-over * third // (3 * interval)) * interval for third in (1, 2, 3)]
    stages: dict[int, float] = {}
    for third, end in enumerate([*ends, steps]):
        stages.setdefault(min(end, steps), rate * third / 3)
    return stages
