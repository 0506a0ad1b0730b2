"""Train, resume, average, score and export from Python. The programs in trainers/ are built on this."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from tf_transformer import distribution
from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.data import datasets as data
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching, Corpus, Files
from tf_transformer.data.pairs import Texts
from tf_transformer.data.records import Records
from tf_transformer.data.sources import MemorySource
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.inference.loading import trained
from tf_transformer.inference.translator import Translator
from tf_transformer.layers.lora import freeze, frozen_weights
from tf_transformer.models.ensemble import Ensemble
from tf_transformer.models.families import build_model, load_tokenizer
from tf_transformer.models.transformer import Transformer
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training import losses as training
from tf_transformer.training.callbacks import (
    Answers,
    Checkpoints,
    DevScore,
    DevText,
    StopAfter,
    StopOnNonFinite,
    Stopped,
    board,
    check_callbacks,
    progress,
)
from tf_transformer.training.recipe import RECIPES, Recipe
from tf_transformer.training.run import IDS, START, History, Run, described, inner
from tf_transformer.training.tasks import task_of
from tf_transformer.utils.reading import made_of
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Count, check_fields, checked, shown

UNKNOWN = {"origin": "another translator"}
FEW = 20  # batches of a pass: with fewer, the optimizer makes too few steps to learn
TRAINING_ONLY_FIELDS = ("dropout", "attention_dropout", "label_smoothing")  # may differ from those of its start


@dataclass
class Trainer:
    """Trains a model into a run's folder, and resumes it.

        corpus = tt.TextCorpus(train=("train.en", "train.de"), dev=("dev.en", "dev.de"))
        trainer = tt.Trainer("runs/mine", tt.PRESETS["tiny"], corpus, tt.Recipe(steps=800, batch_tokens=2_048))
        trainer.fit()
        trainer.evaluate(("test.en", "test.de"))
        trainer.translator().save("savedmodels/mine/1")

    A run that was stopped or killed goes on when `fit` is called again, in any process. It ends with the same weights
    as a run without the interruption.

    Attributes:
        path: the run's folder; see `Run`.
        config: of the model.
        corpus: training, dev and test text. A model of learned positions leaves out what is longer than they are.
        recipe: the settings of the training.
        schedule: a learning-rate schedule instead of equation (3); the recipe's cooldown applies to it, too.
        optimizer: instead of `Adam` with the paper's settings and the schedule; with a `strategy`, made in its scope.
        callbacks: further callbacks for `fit`. For them an epoch ends at each checkpoint; values that they add to its
            logs go into the history. What they count, such as the patience of Keras's `EarlyStopping`, begins anew
            with each `fit`.
        strategy: where to train, for example `distribution.strategy("all")`; `None` means TensorFlow's current one.
        start: a translator whose weights and tokenizer a new run begins with. The run keeps both, and later goes on
            without `start`. `config` is the configuration of its model, apart from rates. Layers and weights of it that
            are frozen stay so.
        tokenizer: of a new run, which keeps it; `None` means that of `start`, or one learned from the corpus.
        max_length: tokens a side, with the end symbol; longer pairs are left out. `None` means the corpus's.

    Raises:
        BadInput: If `optimizer` or `schedule` is given with settings that it replaces, `start` has other sizes, a
            callback would change weights or a rate that a schedule sets, `jit_compile` is on with several devices, the
            tokenizer has another size than the config, or the records have pairs of other lengths.
    """

    path: str | os.PathLike[str]
    config: TransformerConfig
    corpus: Corpus
    recipe: Recipe = field(default_factory=Recipe)
    schedule: keras.optimizers.schedules.LearningRateSchedule | None = None
    optimizer: keras.optimizers.Optimizer | None = None
    callbacks: Sequence[keras.callbacks.Callback] = ()
    strategy: Any = None
    start: Translator | None = None
    tokenizer: Tokenizer | None = None
    max_length: Count | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.start:
            self._check_start(self.start)
        if self.tokenizer:
            self._check_tokenizer(self.tokenizer)
        self._choose_length()
        self._check_optimizer()
        if not ON_TENSORFLOW and (self.recipe.parts > 1 or self.recipe.on_nan != "stop"):
            got = f"parts={self.recipe.parts} and on_nan={self.recipe.on_nan}"
            raise BadInput(f"expected parts=1 and on_nan=stop on the backend {keras.backend.backend()}, got {got}")
        given = {"schedule": self.schedule, "optimizer": self.optimizer}
        self._given = {name: described(value) for name, value in given.items() if value}  # as `fit` may change a rate
        if self.strategy is not None and not hasattr(self.strategy, "num_replicas_in_sync"):
            raise BadInput(f"strategy: expected a tf.distribute.Strategy or None, got {shown(self.strategy)}")
        self._strategy = self.strategy or distribution.current()
        if self.recipe.stop_after and distribution.is_a_worker(self._strategy):
            raise BadInput(f"stop_after: expected none on several machines, got {self.recipe.stop_after}")
        replicas = distribution.replicas(self._strategy)
        if self.recipe.jit_compile == "on" and replicas > 1:
            raise BadInput(f"jit_compile: expected auto or off on {replicas} devices, got on, which is for one")
        self.writes = distribution.is_chief(self._strategy)
        keep = max(2, self.recipe.averaged)  # if the newest is damaged, training goes on from the one before
        self.run = Run(self.path, keep, self.writes)
        self.steps = self.began = 0  # of the last `fit`: the training's last step, and the step it began after
        self._model: Transformer | None = None
        self._batches: tuple[Batches, Batches] | None = None  # of training and dev text

    @property
    def settings(self) -> dict[str, Any]:
        """The contents of this run's config.json."""
        settings: dict[str, Any] = {
            "kind": self.corpus.kind,
            "model": self.config.to_dict(),
            "recipe": self.recipe.to_dict(),
            "corpus": self.corpus.describe(),
            "dev": MemorySource(*self.corpus.dev).describe()["sha256"],
        }
        if self.start:
            settings["start"] = dict(self.start.export_options) or UNKNOWN
            if frozen := frozen_weights(self.start.model):
                settings["frozen"] = frozen
        if self.max_length:
            settings["max_length"] = self.max_length
        own = {"floatx": keras.config.floatx()}
        if not self.recipe.mixed_precision:
            own["dtype_policy"] = keras.config.dtype_policy().name
        if own := {name: dtype for name, dtype in own.items() if dtype != "float32"}:
            settings["keras"] = own
        return settings | self._given

    def _check_optimizer(self) -> None:
        recipe, optimizer = self.recipe, inner(self.optimizer)
        if self.schedule and recipe.learning_rate:
            raise BadInput("schedule: expected no learning_rate with it, since it has its own")
        names = [name for name in ("learning_rate", "cooldown_steps", "clip_norm") if getattr(recipe, name)]
        if optimizer and (self.schedule or names):
            raise BadInput(f"optimizer: expected no {names[0] if names else 'schedule'} with it, since it has its own")
        if optimizer and (recipe.ema_momentum or getattr(optimizer, "use_ema", False)):
            got = "got use_ema or ema_momentum. Give Recipe(ema_momentum=...) and no optimizer"
            raise BadInput(f"optimizer: expected one without moving averages, {got}")
        schedule = keras.optimizers.schedules.LearningRateSchedule
        scheduled = not optimizer or isinstance(optimizer._learning_rate, schedule)  # the property computes its value
        check_callbacks(self.callbacks, scheduled)

    def _check_tokenizer(self, tokenizer: Tokenizer) -> None:
        if self.start:
            raise BadInput("tokenizer: expected none with start, which has its own")
        if tokenizer.vocab_size != (V := self.config.vocab_size):
            raise BadInput(f"tokenizer: expected one of the config's vocab_size={V}, got {tokenizer.vocab_size}")

    def _choose_length(self) -> None:
        """Leave out what is longer than `max_length`, and than the table of learned positions."""
        corpus = self.corpus
        if self.max_length:
            corpus = dataclasses.replace(corpus, max_length=self.max_length)
        if self.config.positions == "learned" and (most := corpus.max_length or 0) > self.config.max_length:
            if isinstance(corpus.train, Records):
                got = f"expected max_length={most} or more, that of the records, got {self.config.max_length}"
                raise BadInput(f"config: {got}")
            corpus = dataclasses.replace(corpus, max_length=self.config.max_length)
        self.corpus = corpus

    def _check_start(self, start: Translator) -> None:
        if isinstance(start.model, Ensemble):
            raise BadInput(f"start: expected one model, got an ensemble of {len(start.model.models)}")
        if not getattr(start.model, "trainable_weights", True):
            raise BadInput("start: expected weights that learn, got a model whose weights are all frozen")
        rates = {name: getattr(self.config, name) for name in TRAINING_ONLY_FIELDS}
        sizes, start_sizes = self.config.to_dict(), start.model.config.to_dict() | rates
        if differing := [name for name in start_sizes if sizes.get(name) != start_sizes[name]]:
            expected = ", ".join(f"{name}={start_sizes[name]}" for name in differing)
            got = ", ".join(f"{name}={sizes.get(name)}" for name in differing)
            raise BadInput(f"config: expected the sizes of the model to start from, {expected}; got {got}")

    @checked
    def fit(self, until: Count | None = None) -> History:
        """Train, from the run's last checkpoint if there is one. A run that is finished stays as it is, and `fit` says
        what to change for more.

        SIGTERM and Ctrl-C save first and then raise `callbacks.Stopped`.

        After a callback such as `EarlyStopping` has ended a run, `fit` does nothing, unless `until` or the recipe asks
        for more steps.

        Args:
            until: stop after this step, for a later `fit` to go on; `None` means the end.

        Returns:
            the history: a row for each checkpoint, as in history.csv; `history` has columns, as Keras's `History`.

        Raises:
            BadInput: the folder holds another run, another process trains there, the corpus has no usable sentences,
                `until` is not positive or beyond the end, or the last step is another one although the cooldown has
                begun.
        """
        try:
            tokenizer = self._begin()
            self._train(tokenizer, until)
        except BaseException:
            self._model = None if self.optimizer is None else self._model  # it may have trained beyond a checkpoint
            raise
        finally:
            self.run.unlock()
        return History(self.run.history)

    def _begin(self) -> Tokenizer:
        """A new run's tokenizer and config.json, and the batches."""
        run, recipe = self.run, self.recipe
        if (run.path / "config.json").exists():
            run.lock()  # a new run is locked when it begins, so that bad input leaves no folder
        is_there = run.exists(self.settings)
        distribution.wait_for_all(self._strategy)  # until here, all workers find the same files
        is_first = self.writes and not is_there
        given = self.start.tokenizer if self.start else self.tokenizer
        if is_first:
            tokenizer = given or self.corpus.learn_tokenizer(self.config.vocab_size, recipe.tokenizer)
        else:
            if not is_there:
                distribution.wait_for_all(self._strategy)  # for the chief
            file = run.path / "tokenizer.model"
            tokenizer = load_tokenizer(file)
            if given and given.fingerprint != tokenizer.fingerprint:
                name = "start: expected the tokenizer and languages" if self.start else "tokenizer: expected that"
                raise BadInput(f"{name} of the run, {file}, got another; give another folder")
        batching = Batching(tokenizer, recipe.batch_tokens, recipe.seed, folder=run.path / IDS)
        if self._batches is None:
            self._batches = self.corpus.batches(batching), self.corpus.dev_batches(batching)
        batches, dev_batches = self._batches
        say(f"training text: {batches.summary()}; vocabulary of {tokenizer.vocab_size:,}")
        if not len(batches):
            raise BadInput(f"expected sentences of at most {self.corpus.max_length} tokens to train on, got none")
        if is_there:
            self._check_steps(made_of(Recipe, run.settings()["recipe"]), len(batches))
        say(f"dev text: {dev_batches.summary()}")
        if not len(dev_batches):
            raise BadInput(f"expected a dev text with sentences of at most {self.corpus.max_length} tokens, got none")
        if self.writes:
            run.lock()
            if is_first and (run.path / "config.json").exists():
                raise BadInput(f"{run.path}: expected no run yet, found one that was begun meanwhile; call fit again")
            if is_first:
                tokenizer.save(run.path / "tokenizer.model")
                if self.start:
                    run.save_start(self.start.astype("float32").model)
            before = run.settings() if is_there else {}  # "start" is written once
            run.begin({name: before[name] for name in ("start", "frozen") if name in before} | self.settings)
            self.corpus.keep_ids(batching, batches)
        if is_first:
            distribution.wait_for_all(self._strategy)
        return tokenizer

    def _check_steps(self, before: Recipe, epoch: int) -> None:
        """Checks that the last step is the same once the cooldown has begun: the learning rate would jump up."""
        was, now = (recipe.last_step(epoch) for recipe in (before, self.recipe))
        if was == now or not before.cooldown_steps:
            return
        newest, begins = self.run.newest(), max(0, was - before.cooldown_steps)
        if newest and begins < newest[1]["step"] <= was:
            raise BadInput(
                f"steps: expected {was:,}, since this run's learning rate falls to 0 from step {begins:,} on, "
                f"got {now:,}. Give {self.run.way_out}"
            )

    def _train(self, tokenizer: Tokenizer, until: int | None) -> None:
        assert self._batches
        (batches, dev_batches), recipe = self._batches, self.recipe
        steps = recipe.last_step(len(batches))
        replicas = distribution.replicas(self._strategy)
        interval = recipe.interval(steps)
        alone = not distribution.is_a_worker(self._strategy)
        if until and until > steps:
            raise BadInput(f"until: expected at most {steps}, the recipe's last step, got {until}")
        asked, until = until, until or steps
        checkpoints = Checkpoints(self.run, steps=steps, until=until, alone=alone)
        stopped = asked is None and checkpoints.step < steps <= checkpoints.stopped_of  # and nobody asks for more
        self.steps, self.began = steps, checkpoints.step
        if not checkpoints.step:
            _warn_of_few(len(batches), recipe.batch_tokens)
        if self._model is None:
            self._model = self.make_model(steps)
            freeze(self._model, self.run.settings().get("frozen", ()))
        model = self._model
        say(f"model: {model.count_params():,} parameters, {replicas} x; run: {self.run.path}")
        batches.fixed_shapes = dev_batches.fixed_shapes = bool(model.jit_compile)
        if model.jit_compile:
            say(f"XLA compiles the step for {len(batches.shapes)} shapes of batches")
        if stopped:
            say(
                f"a callback stopped this run at step {checkpoints.step:,} of {steps:,}; "
                f"to go on, call fit(until={steps}) or ask for more steps"
            )
        elif checkpoints.step >= until:
            more = "the recipe more steps, or the trainer another folder"
            more = f"; for more, give {self.run.way_out if recipe.cooldown_steps else more}" if until == steps else ""
            say(f"nothing to train: this run is at step {checkpoints.step:,} of {steps:,}{more}")
        elif checkpoints.step:
            but = ", not from the weights of start" if self.start else ""
            say(f"going on from the checkpoint at step {checkpoints.step:,} of {steps:,}{but}")
        elif (self.run.path / START).exists():
            start = build_model(self.config, "float32")
            start.load_weights(self.run.path / START)  # a compiled model would look for its optimizer in the file
            model.set_weights(start.get_weights())
        checkpoints.restore(model)

        if checkpoints.step < until and not stopped:
            say(f"a checkpoint and the dev text's score every {interval:,} steps")
        while checkpoints.step < until and not stopped:
            first, done = divmod(checkpoints.step, interval)  # a stopped run may have part of an epoch
            wrong = StopOnNonFinite(batches, checkpoints.step, recipe.on_nan == "skip")
            checkpoints.before_saving = wrong.check
            watching = [wrong, *self._watching(model, tokenizer)]
            with checkpoints.saving_on_signals():
                try:
                    model.fit(
                        data.fed(batches, replicas, checkpoints.step),
                        steps_per_epoch=interval - done,
                        initial_epoch=first,
                        epochs=first + 1 if done else -(-until // interval),
                        validation_data=data.fed(dev_batches, replicas, count=len(dev_batches)),
                        validation_steps=len(dev_batches),
                        shuffle=False,  # the batches are
                        verbose=0,
                        callbacks=[*watching, *self.callbacks, checkpoints, progress(steps)],
                    )
                except Stopped as stop:
                    if stop.number:
                        raise
            if model.stop_training and checkpoints.step < steps:
                say(f"stopped at step {checkpoints.step:,} by a callback")
                break
        distribution.wait_for_all(self._strategy)  # for the chief to save

    def _watching(self, model: Transformer, tokenizer: Tokenizer) -> list[keras.callbacks.Callback]:
        """The callbacks that score the dev text and write for TensorBoard, in one worker of several."""
        if not self.writes:
            return []
        logs, task = self.run.path / "logs", task_of(self.corpus.kind)
        dev = DevText(task.metric, task.score, *self.corpus.dev).thinned(self.recipe.dev_sentences)
        watching: list[keras.callbacks.Callback] = [DevScore(task.decoder(model, tokenizer), dev, logs=logs)]
        if count := self.recipe.stop_after:
            watching.append(StopAfter(self.run, f"dev_{task.metric.lower()}", count))
        return [*watching, *board(logs)]

    def make_model(self, steps: int) -> Transformer:
        """A built and compiled model, to train for `steps` steps (sections 5.3 and 5.4).

        A subclass may return another model with the same weights.
        """
        recipe = self.recipe
        keras.utils.set_random_seed(recipe.seed)
        policy = f"mixed_{recipe.mixed_precision}" if recipe.mixed_precision else None  # Keras's own
        with distribution.scope(self._strategy):  # not around `fit`, where one worker alone creates variables
            model = build_model(self.config, policy)
            if ON_TENSORFLOW:
                model.parts, model.skip_not_finite = recipe.parts, recipe.on_nan == "skip"
            model.compile(
                optimizer=self.optimizer or self._adam(steps),
                loss=training.SmoothedCrossEntropy(self.config.label_smoothing),
                metrics=[training.TokenAccuracy(), training.Perplexity(), training.TokenCount()],
                jit_compile={"auto": "auto", "on": True, "off": False}[recipe.jit_compile],
            )
        return model

    def _adam(self, steps: int) -> training.Adam:
        recipe, d_model = self.recipe, self.config.d_model
        schedule = self.schedule
        if not schedule and recipe.learning_rate:  # constant: the cosine ends with the rate that it begins with
            options = {"warmup_target": recipe.learning_rate, "warmup_steps": recipe.warmup_steps}
            schedule = keras.optimizers.schedules.CosineDecay(0.0, decay_steps=1, alpha=1.0, **options)
        schedule = schedule or training.WarmupSchedule(d_model, recipe.warmup_steps, recipe.factor)
        if recipe.cooldown_steps:
            schedule = training.Cooldown(schedule, min(recipe.cooldown_steps, steps), steps)
        averages = {"use_ema": True, "ema_momentum": recipe.ema_momentum} if recipe.ema_momentum else {}
        adam = training.Adam(schedule, 0.9, 0.98, 1e-9, global_clipnorm=recipe.clip_norm, **averages)
        # At the end of each `fit`, Keras would overwrite the weights, which train on, with the averages.
        adam.finalize_variable_values = lambda weights: None
        return adam

    def _texts(self, given: Files | Texts) -> Texts:
        paths = [one for one in given if isinstance(one, str | os.PathLike)]
        lists = [list(one) for one in given if not isinstance(one, str | os.PathLike)]
        if not lists:
            return task_of(self.corpus.kind).read(paths)
        if len(lists) != 2 or paths:
            raise BadInput(f"files: expected two lists, sources and references, got {shown(given)}")
        return lists[0], lists[1]

    def translator(self, **search: Any) -> Any:
        """The average of the run's last checkpoints (section 6.1), in float32, or with `ema_momentum` the last one.

        Args:
            search: options of `Translator`, for example beam_size.

        Returns:
            a `Translator`, or a `Parser` if the run parses.

        Raises:
            BadInput: If the run has no checkpoint.
        """
        if not self.run.checkpoints():
            raise BadInput(f"{self.run.path}: expected a run with a checkpoint, found none. Call fit first.")
        return trained(self.path, average_last=self.recipe.averaged, **search)

    @checked
    def evaluate(self, files: Files | Texts | None = None, translator: Answers | None = None) -> dict[str, Any]:
        """Score the run: "BLEU" and "chrF", or "F1", each with its `value` and its `signature`.

        Args:
            files: source and reference, or files of trees, or a list of sources and one of their references; `None`
                means the corpus's test text.
            translator: the translator to score; `None` means `self.translator()`.
        """
        source, references = self._texts(files) if files else self.corpus.test or self.corpus.dev
        return task_of(self.corpus.kind).scores((translator or self.translator())(source), references)


def _warn_of_few(batches: int, batch_tokens: int) -> None:
    """Say that batches are too large for a text, and which recipe has smaller ones."""
    presets = {name: recipe for name, recipe in RECIPES.items() if name in PRESETS}
    smaller = {name: recipe for name, recipe in presets.items() if recipe.batch_tokens < batch_tokens}
    if batches < FEW and smaller:
        enough = [name for name in smaller if smaller[name].batch_tokens <= batches * batch_tokens / FEW]
        name = max(enough or smaller, key=lambda name: smaller[name].batch_tokens)
        say(
            f"warning: a pass over this text is {batches} batches of {batch_tokens:,} tokens, few to learn from; the "
            f"recipe {name!r} has {smaller[name].batch_tokens:,} tokens a batch"
        )
