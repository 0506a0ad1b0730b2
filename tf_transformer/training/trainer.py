"""Trains, resumes, averages and scores models from Python. The programs in trainers/ are built on `Trainer`."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from tf_transformer import distribution
from tf_transformer.config import PRESETS, BadInput, TransformerConfig
from tf_transformer.data import datasets as data
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching, Corpus, DevSet, Files
from tf_transformer.data.ids import TokenizedSource
from tf_transformer.data.sources import MemorySource, Texts
from tf_transformer.decoding.primitives import ON_TENSORFLOW
from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.evaluation.bleu import Metric, Score
from tf_transformer.inference.translator import Translator, trained
from tf_transformer.models.families import build_model, load_tokenizer, stored_family
from tf_transformer.models.transformer import Transformer
from tf_transformer.models.weights import freeze, frozen_weights
from tf_transformer.tokenizers.tokenizer import Tokenizer
from tf_transformer.training import arguments
from tf_transformer.training.callbacks import (
    Checkpoints,
    DevScore,
    DevText,
    StopAfter,
    StopOnNonFinite,
    TrainingInterrupted,
    Translate,
    progress,
)
from tf_transformer.training.losses import Perplexity, SmoothedCrossEntropy, TokenAccuracy, TokenCount
from tf_transformer.training.optimizer import Adam, ConstantSchedule, Cooldown, WarmupSchedule
from tf_transformer.training.recipe import RECIPES, Recipe
from tf_transformer.training.run import IDS, START, History, Run
from tf_transformer.training.settings import described
from tf_transformer.training.tasks import task_of
from tf_transformer.training.tensorboard import board
from tf_transformer.utils.files import flush
from tf_transformer.utils.reading import made_of
from tf_transformer.utils.terminal import say
from tf_transformer.utils.values import Count, check_fields, checked, convert, shown

UNKNOWN = {"origin": "another translator"}
# With fewer batches in an epoch, the optimizer makes too few steps to learn.
FEW_BATCHES = 20


@dataclass
class Trainer:
    """Trains a model in a run's directory, and resumes it.

        corpus = tt.TextCorpus(train=("train.en", "train.de"), dev=("dev.en", "dev.de"))
        trainer = tt.Trainer("runs/mine", tt.PRESETS["tiny"], corpus, tt.Recipe(steps=800, batch_tokens=2_048))
        trainer.fit()
        trainer.evaluate(("test.en", "test.de"))
        trainer.translator().save("savedmodels/mine/1")

    To resume a stopped or killed run, call `fit` again, in any process. It ends with an uninterrupted run's weights.

    A trainer's attributes cannot be changed, except for `callbacks`. For other settings make another trainer.

    Attributes:
        path: Directory of the run, which `Run` describes.
        config: Configuration of the model.
        corpus: Training, dev and test set. With learned positions, pairs longer than `config.max_length` are skipped.
        recipe: Settings of the training.
        schedule: Learning-rate schedule instead of equation (3). The recipe's cooldown applies to it.
        optimizer: Optimizer instead of `Adam` with the paper's settings. With a `strategy`, create it in its scope. It
            trains one model, so each trainer needs its own.
        loss: Loss of logits instead of `SmoothedCrossEntropy`. Labels of its attribute `ignore_class`, which is 0, do
            not count.
        callbacks: Additional callbacks for `fit`. For them, each checkpoint ends an epoch. Values that they add to its
            logs are stored in the history. Their counters, such as the patience of Keras's `EarlyStopping`, restart
            with each `fit`.
        strategy: Where to train, for example `distribution.strategy("all")`. Defaults to TensorFlow's current one.
        start: Translator whose weights and tokenizer a new run begins with. The run stores both, so you can resume
            without `start`. `config` must be its model's, except for rates. Its frozen weights are not trained.
        tokenizer: Tokenizer of a new run. Defaults to that of `start`, or to one trained on the corpus.
        max_length: Maximum tokens per side, including EOS. Longer pairs are skipped. Defaults to the corpus's.
        metric: Metric to validate by, instead of the recipe's, or a function as in `Metric`.

    Raises:
        BadInput: If settings contradict each other, a callback would change weights or a scheduled rate, or `start`,
            the tokenizer or the records don't fit the config.
    """

    path: str | os.PathLike[str]
    config: TransformerConfig
    corpus: Corpus
    recipe: Recipe = field(default_factory=Recipe)
    schedule: keras.optimizers.schedules.LearningRateSchedule | None = None
    optimizer: keras.optimizers.Optimizer | None = None
    loss: keras.losses.Loss | None = None
    callbacks: Sequence[keras.callbacks.Callback] = ()
    strategy: Any = None
    start: Translator | None = None
    tokenizer: Tokenizer | None = None
    max_length: Count | None = None
    metric: Metric | Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        # All that can be wrong in the arguments raises here. Nothing is written before `fit`.
        check_fields(self)
        config, recipe = self.config, self.recipe
        arguments.check_start(self.start, config)
        if self.tokenizer and self.start:
            raise BadInput("tokenizer: cannot be combined with start, which has a tokenizer")
        if self.tokenizer and self.tokenizer.vocab_size != (V := config.vocab_size):
            raise BadInput(f"tokenizer: expected one of the config's vocab_size={V}, got {self.tokenizer.vocab_size}")
        if self.max_length:
            self.corpus = dataclasses.replace(self.corpus, max_length=self.max_length)
        most = config.num_positions
        if most is not None and (longest := self.corpus.max_length or 0) > most:
            if isinstance(self.corpus.train, TokenizedSource):
                got = f"expected max_length={longest} or more, that of the records, got {most}"
                raise BadInput(f"config: {got}")
            self.corpus = dataclasses.replace(self.corpus, max_length=most)
        arguments.check_optimizer(recipe, self.optimizer, self.schedule, self.callbacks)
        arguments.check_unused(self.optimizer)
        arguments.check_loss(self.loss, config)
        if self.metric and recipe.metric:
            raise BadInput(f"metric: cannot be combined with the recipe's, {recipe.metric}")
        usual, metric = task_of(self.corpus.kind).metric, self.metric or recipe.metric
        if callable(metric):
            metric = Metric(getattr(metric, "__name__", type(metric).__name__), metric)
        self._metric = usual if metric in (None, usual.name) else Metric(metric) if isinstance(metric, str) else metric
        arguments.check_backend(recipe)
        # Described now, since a callback may change the optimizer's rate in `fit`.
        custom = {"schedule": self.schedule, "optimizer": self.optimizer, "loss": self.loss}
        self._custom = {name: described(value) for name, value in custom.items() if value}
        if self.strategy is not None and not hasattr(self.strategy, "num_replicas_in_sync"):
            raise BadInput(f"strategy: expected a tf.distribute.Strategy or None, got {shown(self.strategy)}")
        self._strategy = self.strategy or distribution.current()
        arguments.check_devices(recipe, self._strategy)
        self.writes = distribution.is_chief(self._strategy)
        # Two at least: if the newest is damaged, training resumes from the previous one.
        best = self._metric if recipe.average == "best" else None
        self.run = Run(self.path, max(2, recipe.averaged), self.writes, best)
        # The last `fit` sets these to the last step of the training and the step that it resumed from.
        self.steps = self.began = 0
        self._model: Transformer | None = None
        self._batches: tuple[Batches, Batches] | None = None  # training and dev set
        self._fingerprint = ""  # of the tokenizer that made the batches

    def __setattr__(self, name: str, value: Any) -> None:
        # Model, batches, metric and run were made from the arguments. Another value would reach only some of them.
        if "_model" in vars(self) and name in {field.name for field in dataclasses.fields(self)}:
            if name != "callbacks":
                raise BadInput(f"{name}: cannot be changed in a Trainer. Make a new one, with {name}=...")
            before = self.callbacks
            try:
                vars(self)[name] = convert(name, value, Sequence[keras.callbacks.Callback])
                arguments.check_optimizer(self.recipe, self.optimizer, self.schedule, self.callbacks)
            except BadInput:
                vars(self)[name] = before
                raise
            return
        super().__setattr__(name, value)

    @property
    def settings(self) -> dict[str, Any]:
        """Contents of this run's config.json."""
        settings: dict[str, Any] = {
            "kind": self.corpus.kind,
            "model": self.config.to_dict(),
            **stored_family(self.config),
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
        dtypes = {"floatx": keras.config.floatx()}
        if not self.recipe.mixed_precision:
            dtypes["dtype_policy"] = keras.config.dtype_policy().name
        if dtypes := {name: dtype for name, dtype in dtypes.items() if dtype != "float32"}:
            settings["keras"] = dtypes
        return settings | self._custom

    def check(self) -> None:
        """Raises the errors of `fit` that it finds without training or writing: it reads all lines of the corpus.

        It trains no vocabulary, so it does not find a `vocab_size` that is too large for the corpus.

        Raises:
            BadInput: If a line is bad, or the directory holds another run or something else.
            FileNotFoundError: If a file is missing.
        """
        if self.run.exists(self.settings):
            self._stored_tokenizer()

    @checked
    def fit(self, until: Count | None = None) -> History:
        """Trains, from the run's last checkpoint if there is one. For a finished run, it logs how to train more.

        SIGTERM and Ctrl-C save a checkpoint and raise `callbacks.TrainingInterrupted`. If a callback such as
        `EarlyStopping` ended the run before, `fit` does nothing, unless `until` or the recipe asks for more steps.

        Args:
            until: Step to stop after. A later `fit` resumes there. Defaults to the recipe's last step.

        Returns:
            The history: a row per checkpoint, as in history.csv. Its `history` has columns, as in Keras's `History`.

        Raises:
            BadInput: If the directory holds another run, another process trains it, the corpus has no usable sentences,
                `until` is beyond the end, or the last step changed after the cooldown began.
        """
        try:
            self._fit(until)
        except BaseException:
            # The model may be ahead of the last checkpoint. A given optimizer belongs to it and cannot be built twice.
            self._model = None if self.optimizer is None else self._model
            raise
        finally:
            self.run.unlock()
        return History(self.run.history)

    def _fit(self, until: int | None) -> None:
        """Opens or creates the run, then prepares tokenizer, data and model, and trains epoch by epoch."""
        # 1. The directory: a new run, or one with these settings.
        run, recipe = self.run, self.recipe
        if not run.checkpoints():
            self._forget_model()
        if self._model is None:
            arguments.check_unused(self.optimizer)  # another trainer may have used the optimizer since
        # A new run is locked below, after all input is checked, so that bad input leaves no directory.
        if (run.path / "config.json").exists():
            run.lock()
        # A new run's settings are not read yet. They have the checksums of its training set, which come with the first
        # reading of the text.
        exists = run.exists(self.settings if (run.path / "config.json").exists() else {})
        # Only now may a file change: all workers must have found the same ones.
        distribution.wait_for_all(self._strategy)

        # 2. The vocabulary and, by it, the data. The tokenizer is written before config.json, since a directory with
        # config.json is a run that can resume.
        tokenizer = self._tokenizer(exists)
        batching = Batching(tokenizer, recipe.batch_tokens, recipe.seed, folder=run.path / IDS)
        batches, dev_batches = self._load_data(batching, exists)
        if self.writes:
            self._write_settings(exists, batching, batches)

        # 3. How far to train, and the model, with the weights of the newest checkpoint.
        steps = self.steps = recipe.last_step(len(batches))
        end = until or steps
        if end > steps:
            raise BadInput(f"until: expected at most {steps}, the recipe's last step, got {until}")
        interval, replicas = recipe.interval(steps), distribution.replicas(self._strategy)
        checkpoints = Checkpoints(run, None, steps, end, single_process=not distribution.is_a_worker(self._strategy))
        self.began = checkpoints.step
        if not self.began:
            self._forget_model()
        model = self._prepare_model(checkpoints, until)
        # A checkpoint without a score was saved by a process that was stopped, or raised, while it scored the dev set.
        last = run.history[-1] if run.history and self.writes else {}
        if last.get("step") == checkpoints.step > 0 and self._metric.column not in last:
            dev = data.fed(dev_batches, replicas, count=len(dev_batches))
            validate = functools.partial(model.evaluate, dev, steps=len(dev_batches), verbose=0, return_dict=True)
            checkpoints.complete(self._score_callbacks(model, tokenizer), validate)
        finished = checkpoints.step >= end or (until is None and steps <= checkpoints.stopped_of)
        if not finished:
            say(f"a checkpoint and the dev set's score every {interval:,} steps")

        # 4. Training. For Keras, the steps between two checkpoints are an epoch, whatever the data's epochs are.
        while checkpoints.step < end and not finished:
            # A run that was stopped within an epoch first completes it.
            epoch, done = divmod(checkpoints.step, interval)
            # Raises before anything is saved after a step that was not finite, unless such updates are skipped.
            finite = StopOnNonFinite(batches, checkpoints.step, recipe.on_nan == "skip")
            checkpoints.before_saving = finite.check
            first = keras.callbacks.LambdaCallback(on_train_batch_end=checkpoints.note_step)
            scores = self._score_callbacks(model, tokenizer)
            with checkpoints.saving_on_signals():
                try:
                    model.fit(
                        data.fed(batches, replicas, checkpoints.step),
                        steps_per_epoch=interval - done,
                        initial_epoch=epoch,
                        epochs=epoch + 1 if done else -(-end // interval),
                        validation_data=data.fed(dev_batches, replicas, count=len(dev_batches)),
                        validation_steps=len(dev_batches),
                        shuffle=False,  # batches arrive shuffled
                        verbose=0,
                        # A check, scores for the user's callbacks, then a row with all their values, and its line.
                        callbacks=[first, finite, *scores, *self.callbacks, checkpoints, progress(steps)],
                    )
                except TrainingInterrupted as stop:
                    # Without a signal's number, `until` is reached.
                    if stop.number:
                        raise
            if model.stop_training and checkpoints.step < steps:
                say(f"stopped at step {checkpoints.step:,} by a callback")
                break
        # The chief saves last.
        distribution.wait_for_all(self._strategy)

    def _forget_model(self) -> None:
        """Forgets a trained model without a checkpoint: its run is gone, or an error ended it before the first one."""
        if self._model is None or not int(keras.ops.convert_to_numpy(self._model.optimizer.iterations)):
            return
        if self.optimizer:
            action = "Make a new Trainer with a new optimizer."
            raise BadInput(f"{self.run.path}: expected a checkpoint of the optimizer's model, found none. {action}")
        self._model = None

    def _tokenizer(self, exists: bool) -> Tokenizer:
        """Returns the run's tokenizer. The process that creates the run was passed it or trains it."""
        # One process learns the vocabulary, and the others read it: SentencePiece samples sentences without a seed.
        custom = self.start.tokenizer if self.start else self.tokenizer
        if self.writes and not exists and not custom:
            return self.corpus.train_tokenizer(self.config.vocab_size, self.recipe.tokenizer)
        if not exists:
            # Reads and checks the text, so that a bad line raises before all is tokenized, and in all workers.
            self.corpus.describe()
            if self.writes and custom:
                return custom
            # The chief writes it first.
            distribution.wait_for_all(self._strategy)
        return self._stored_tokenizer()

    def _stored_tokenizer(self) -> Tokenizer:
        """Returns the run's tokenizer, or raises `BadInput` if this trainer was passed another one."""
        custom = self.start.tokenizer if self.start else self.tokenizer
        file = self.run.path / "tokenizer.model"
        tokenizer = load_tokenizer(file, stored_family(self.config).get("family"))
        if custom and custom.fingerprint != tokenizer.fingerprint:
            name = "start: expected the tokenizer and languages" if self.start else "tokenizer: expected that"
            raise BadInput(f"{name} of the run, {file}, got another. Pass another directory.")
        return tokenizer

    def _load_data(self, batching: Batching, exists: bool) -> tuple[Batches, Batches]:
        """Returns the batches of training and dev set, once for all calls of `fit`."""
        # Called before config.json is written, so that an empty corpus leaves no run.
        # A new run may have another tokenizer than the one before it in this directory.
        if self._batches is None or not exists or self._fingerprint != batching.tokenizer.fingerprint:
            self._batches = self.corpus.batches(batching), self.corpus.dev_batches(batching)
            self._fingerprint = batching.tokenizer.fingerprint
        batches, dev_batches = self._batches
        say(f"training set: {batches.summary()}; vocabulary of {batching.tokenizer.vocab_size:,}")
        if not len(batches):
            raise BadInput(f"expected training sentences of at most {self.corpus.max_length} tokens, got none")
        if exists:
            before = made_of(Recipe, self.run.settings()["recipe"])
            was, now = (recipe.last_step(len(batches)) for recipe in (before, self.recipe))
            newest, begins = self.run.newest(), max(0, was - before.cooldown_steps)
            # During and after the cooldown, another last step would make the learning rate jump up.
            if was != now and before.cooldown_steps and newest and begins < newest[1]["step"] <= was:
                raise BadInput(
                    f"steps: expected {was:,}, since this run's learning rate falls to 0 from step {begins:,} on, "
                    f"got {now:,}. Give {self.run.way_out}"
                )
        say(f"dev set: {dev_batches.summary()}")
        if not len(dev_batches):
            raise BadInput(f"expected dev sentences of at most {self.corpus.max_length} tokens, got none")
        return batches, dev_batches

    def _write_settings(self, exists: bool, batching: Batching, batches: Batches) -> None:
        """Writes tokenizer, config.json and token ids."""
        run = self.run
        run.lock()
        if not exists:
            if (run.path / "config.json").exists():
                raise BadInput(f"{run.path}: another process created this run. Call fit again to resume it.")
            batching.tokenizer.save(run.path / "tokenizer.model")
            if self.start:
                # Keras requires the ending .h5 of a temporary name too.
                temporary = run.path / f".{START}"
                self.start.astype("float32").model.save_weights(temporary)
                flush(temporary)
                os.replace(temporary, run.path / START)
        # The start is stored once: later calls may come without it.
        before = run.settings() if exists else {}
        run.begin({name: before[name] for name in ("start", "frozen") if name in before} | self.settings)
        self.corpus.keep_ids(batching, batches)
        if not exists:
            distribution.wait_for_all(self._strategy)

    def _prepare_model(self, checkpoints: Checkpoints, until: int | None) -> Transformer:
        """Returns the model with the weights of the newest checkpoint, or of the run's start, and logs where it is."""
        assert self._batches
        batches, recipe, steps, step = self._batches[0], self.recipe, self.steps, checkpoints.step
        if not step:
            _warn_of_few(len(batches), recipe.batch_tokens)
        if self._model is None:
            self._model = self.make_model(steps)
            freeze(self._model, self.run.settings().get("frozen", ()))
        model, replicas = self._model, distribution.replicas(self._strategy)
        say(f"model: {model.count_params():,} parameters, {replicas} x; run: {self.run.path}")
        for split in self._batches:
            split.fixed_shapes = bool(model.jit_compile)
        if model.jit_compile:
            say(f"XLA compiles the step for {len(batches.shapes)} shapes of batches")
        if until is None and step < steps <= checkpoints.stopped_of:
            advice = f"To resume, call fit(until={steps}) or pass more steps."
            say(f"a callback stopped this run at step {step:,} of {steps:,}. {advice}")
        elif step >= (until or steps):
            advice = self.run.way_out if recipe.cooldown_steps else "more steps in the recipe, or another directory"
            advice = f". To train more, pass {advice}." if until in (None, steps) else ""
            say(f"nothing to train: this run is at step {step:,} of {steps:,}{advice}")
        elif step:
            but = ", not from the weights of start" if self.start else ""
            say(f"going on from the checkpoint at step {step:,} of {steps:,}{but}")
        elif (self.run.path / START).exists():
            # Loaded into a model that is not compiled, since a compiled one would look for its optimizer in the file.
            start = build_model(self.config, "float32")
            start.load_weights(self.run.path / START)
            model.set_weights(start.get_weights())
        checkpoints.restore(model)
        return model

    def _score_callbacks(self, model: Transformer, tokenizer: Tokenizer) -> list[keras.callbacks.Callback]:
        """Returns the callbacks that score the dev set and write for TensorBoard. Only one worker has them."""
        if not self.writes:
            return []
        # Greedy search of at most `dev_sentences`, since a score at each checkpoint must not take long.
        logs, task = self.run.path / "logs", task_of(self.corpus.kind)
        sets = self.corpus.dev.sets
        most = max(1, self.recipe.dev_sentences // len(sets))
        dev = {name: DevText(self._metric, *one[1:]).thinned(most) for name, one in sets.items()}
        decoders = {name: task.decoder(model, tokenizer.with_languages(*one.languages)) for name, one in sets.items()}
        callbacks: list[keras.callbacks.Callback] = [DevScore(decoders, dev, logs=logs)]
        if count := self.recipe.early_stopping_patience:
            callbacks.append(StopAfter(self.run, self._metric, count))
        return [*callbacks, *board(logs)]

    def make_model(self, steps: int) -> Transformer:
        """Returns a built and compiled model, to train for `steps` steps (sections 5.3 and 5.4).

        A subclass may return another model with the same weights.
        """
        recipe = self.recipe
        # Directly before the weights are initialized, so that earlier random numbers of the process do not change them.
        keras.utils.set_random_seed(recipe.seed)
        # The scope is not around `fit`, where only one worker creates variables, to translate the dev set.
        with distribution.scope(self._strategy):
            model = build_model(self.config, f"mixed_{recipe.mixed_precision}" if recipe.mixed_precision else None)
            if ON_TENSORFLOW:
                model.num_microbatches, model.skip_not_finite = recipe.num_microbatches, recipe.on_nan == "skip"
            model.compile(
                optimizer=self.optimizer or self._adam(steps),
                loss=self.loss or SmoothedCrossEntropy(self.config.label_smoothing),
                metrics=[TokenAccuracy(), Perplexity(), TokenCount()],
                jit_compile={"auto": "auto", "on": True, "off": False}[recipe.jit_compile],
            )
        return model

    def _adam(self, steps: int) -> Adam:
        recipe, schedule = self.recipe, self.schedule
        # Equation (3), unless the recipe has a constant rate or the user a schedule. The cooldown applies to any.
        if not schedule and recipe.learning_rate:
            schedule = ConstantSchedule(recipe.learning_rate, recipe.warmup_steps)
        schedule = schedule or WarmupSchedule(self.config.d_model, recipe.warmup_steps, recipe.learning_rate_factor)
        if recipe.cooldown_steps:
            schedule = Cooldown(schedule, min(recipe.cooldown_steps, steps), steps)
        averages = {"use_ema": True, "ema_momentum": recipe.ema_momentum} if recipe.ema_momentum else {}
        # "beta_1 = 0.9, beta_2 = 0.98 and epsilon = 10^-9" (section 5.3).
        adam = Adam(schedule, 0.9, 0.98, 1e-9, global_clipnorm=recipe.clip_norm, **averages)
        # At the end of each `fit`, Keras would overwrite the weights, which train on, with the averages.
        adam.finalize_variable_values = lambda weights: None
        return adam

    def translator(self, **search: Any) -> Any:
        """Returns a translator with the average of the run's last, or best, checkpoints (section 6.1), in float32.

        With `ema_momentum` it has the last checkpoint's weights, which are averages.

        Args:
            search: Options of `Translator`, for example beam_size.

        Returns:
            A `Translator`, or the engine of the run's task.

        Raises:
            BadInput: If the run has no checkpoint.
        """
        if not self.run.checkpoints():
            raise BadInput(f"{self.run.path}: expected a run with a checkpoint, found none. Call fit first.")
        return trained(self.path, average_last=self.recipe.averaged, **search)

    @checked
    def evaluate(self, files: Files | Texts | None = None, translator: Translate | None = None) -> dict[str, Any]:
        """Scores the run.

        Args:
            files: Source and reference file, or the files that the task reads, or a list of sources and one of their
                references. Defaults to the corpus's test set.
            translator: Translator to score. Defaults to `self.translator()`.

        Returns:
            "BLEU" and "chrF", or the task's scores, each with its `value` and its `signature`. If the test set
            is several, these are means, and "BLEU NAME" and so on are those of each.

        Raises:
            BadInput: If `files` are neither files nor two lists, or the run has no checkpoint.
        """
        task, sets = task_of(self.corpus.kind), self.corpus.test.sets
        if files:
            are_paths = [isinstance(file, str | os.PathLike) for file in files]
            if not all(are_paths) and (any(are_paths) or len(files) != 2):
                raise BadInput(f"files: expected two lists, sources and references, got {shown(files)}")
            texts: Any = files
            # Two paths are files, two lists are texts. A path and a list would be neither.
            source, references = task.read(texts) if all(are_paths) else map(list, texts)
            sets = {"": DevSet((), source, references)}
        translator, scores = translator or self.translator(), dict[str, dict[str, Any]]()
        for name, (languages, source, references) in sets.items():
            options = dict(zip(LANGUAGES, languages, strict=False))
            scores[name] = task.scores(translator(source, **options), references)
        first, *others = scores.values()
        if not others:
            return first
        means = {metric: sum(one[metric].value for one in scores.values()) / len(scores) for metric in first}
        named = {f"{metric} {name}": score for name, of_set in scores.items() for metric, score in of_set.items()}
        return {metric: Score(mean, first[metric].signature) for metric, mean in means.items()} | named


def _warn_of_few(batches: int, batch_tokens: int) -> None:
    """Warns if batches are too large for a corpus, and names a recipe with smaller ones."""
    sizes = {name: recipe.batch_tokens for name, recipe in RECIPES.items() if name in PRESETS}
    smaller = {name: size for name, size in sizes.items() if size < batch_tokens}
    if batches < FEW_BATCHES and smaller:
        enough = [name for name, size in smaller.items() if size <= batches * batch_tokens / FEW_BATCHES]
        name = max(enough or smaller, key=lambda name: smaller[name])
        say(
            f"warning: a pass over this corpus is only {batches} batches of {batch_tokens:,} tokens. The recipe "
            f"{name!r} has {smaller[name]:,} tokens per batch."
        )
