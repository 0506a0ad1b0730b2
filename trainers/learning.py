"""What the programs that train have in common: their options, the training itself, and the SavedModel at its end."""

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_ALPHA = 5.0  # that of exports, whose module takes TensorFlow to import


def add_training_options(add, beam_size: int, alpha: float, average_last: int = 5) -> None:
    """The options of every program that trains; `add` is the parser's add_argument."""
    add(
        "--run",
        type=Path,
        metavar="DIR",
        help="the run's folder; one that was stopped goes on (runs/demo, or runs/PRESET)",
    )
    add("--steps", type=int, help="updates (the preset's)")
    add("--epochs", type=int, help="passes over the training text, instead of --steps")
    add("--batch-tokens", type=int, metavar="N", help="source tokens, and target tokens, a batch (the preset's)")
    add("--vocab-size", type=int, metavar="N", help="of the vocabulary that source and target share (the preset's)")
    add("--tokenizer", default="bpe", choices=["bpe", "unigram"], metavar="KIND", help="bpe or unigram (bpe)")
    add("--warmup-steps", type=int, metavar="N", help="steps in which the learning rate grows (the preset's)")
    add("--factor", type=float, help="multiplies equation (3)'s learning rate (the preset's)")
    add("--dropout", type=float, help="P_drop (the preset's)")
    add("--eval-every", type=int, metavar="STEPS", help="steps between checkpoints and looks at the dev text")
    text = f"checkpoints kept, and averaged at the end ({average_last})"
    add("--average-last", type=int, default=average_last, metavar="N", help=text)
    add("--beam-size", type=int, default=beam_size, help=f"beams in the final search ({beam_size})")
    add("--alpha", type=float, default=alpha, help=f"exponent of the length penalty ({alpha})")
    add(
        "--mixed-precision",
        choices=["bfloat16", "float16"],
        metavar="DTYPE",
        help="bfloat16 or float16 to compute in, with weights in float32",
    )
    add("--devices", metavar="LIST", help="all, gpu:0,gpu:1, or cpu:2 to try it (one device; the workers of TF_CONFIG)")
    add("--parts", type=int, default=1, metavar="N", help="compute a batch in N parts: same update, less memory (1)")
    add("--clip-norm", type=float, metavar="NORM", help="longest gradient; longer ones are shortened (none)")
    add("--on-nan", default="stop", choices=["stop", "skip"], metavar="DO", help="stop, or skip the update (stop)")
    add("--seed", type=int, default=1)
    add(
        "--dry-run",
        nargs="?",
        const="8xP100",
        metavar="DEVICES",
        help="say what it would take on 8xP100, and stop",
    )


def check_training_options(parser, args) -> None:
    whole = ("steps", "epochs", "batch_tokens", "warmup_steps", "eval_every", "average_last", "beam_size", "parts")
    for name in (*whole, "factor", "clip_norm"):
        if getattr(args, name) is not None and not 0 < getattr(args, name) < math.inf:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")
    if not 0 <= args.alpha <= MAX_ALPHA:
        parser.error(f"--alpha: expected a number from 0 to {MAX_ALPHA:g}, got {args.alpha:g}")
    if not 0 <= args.seed < 2**32:
        parser.error(f"--seed: expected 0 to {2**32 - 1}, got {args.seed}")


def choose(tt, args, recipes, default: str):
    """The configuration and the recipe that the options describe, and what of it a run's config.json begins with."""
    if args.preset not in tt.PRESETS:
        raise tt.BadInput(f"--preset: expected one of {', '.join(tt.PRESETS)}; got {args.preset!r}")
    changes = {name: getattr(args, name) for name in ("vocab_size", "dropout") if getattr(args, name) is not None}
    config = dataclasses.replace(tt.PRESETS[args.preset], **changes)
    recipe = dict(recipes.get(args.preset, recipes[default]))
    recipe |= {name: getattr(args, name) for name in recipe if getattr(args, name) is not None}
    return config, recipe, described(args, config, recipe)


def choose_export(tt, args, strategy, run) -> None:
    """Where the run's SavedModel goes, if --export does not say it.

    Raises:
        BadInput: none could be written there.
    """
    from tf_transformer.serving.publish import next_version

    args.export = args.export or Path("savedmodels") / run.path.name
    if tt.distribution.is_chief(strategy):
        next_version(args.export)


def described(args, config, recipe) -> dict:
    """What of the options a run's config.json begins with."""
    return {
        "model": {key: value for key, value in config.to_dict().items() if key != "train_steps"},
        "training": {key: value for key, value in recipe.items() if key != "eval_every"}
        | {"clip_norm": args.clip_norm},
        "data": {"tokenizer": args.tokenizer, "seed": args.seed, "mixed_precision": args.mixed_precision},
    }


def show_plan(tt, args, config, recipe) -> None:
    """What the training would take, instead of it (--dry-run)."""
    if args.epochs:
        raise tt.BadInput("--dry-run: expected --steps, got --epochs, which depend on the text")
    steps = args.steps or config.train_steps
    half = bool(args.mixed_precision)
    print(f"{args.preset}: {json.dumps(config.to_dict())}")
    print(tt.costs.plan(config, steps, recipe["batch_tokens"], args.dry_run, half, args.parts))
    print(f"checkpoints: one every {recipe['eval_every']:,} steps; the last {args.average_last} are kept, and averaged")


@dataclasses.dataclass(frozen=True)
class Texts:
    """What a run learns from, and what it is watched with.

    Attributes:
        train: pairs of strings (source, target), a dataset of `count`; `None` where there are `records`.
        count: how many they are.
        dev: a list of sources and one of targets.
        learn_tokenizer: gives the tokenizer of a new run.
        watch: for model, tokenizer and TensorBoard's folder, a callback that looks at the dev text.
        records: a `Records` to train on instead of `train`.
        pair_ids: a function of the tokenizer that gives the one of `data.token_batches`; `None` to translate.
        max_length: tokens a side; `None` means `data.MAX_LENGTH`.
        bidirectional_steps: so many first steps learn from every pair of `train` in both directions (Ding et al. 2021).
        word_dropout: share of the tokens, of source and target_in, of which the model learns without seeing them, in
            the steps after the bidirectional ones.
        translations: of other models, files of what they make of every source and of every target of `train`; the steps
            after the bidirectional ones learn from them, too.
    """

    train: Any
    count: int | None
    dev: tuple[list[str], list[str]]
    learn_tokenizer: Callable[[], Any]
    watch: Callable[[Any, Any, Path], Any]
    records: Any = None
    pair_ids: Callable[[Any], Callable] | None = None
    max_length: int | None = None
    bidirectional_steps: int = 0
    word_dropout: float = 0.0
    translations: tuple[tuple[Path, Path], ...] = ()

    def batches(self, tt, tokenizer, batch_tokens: int, seed: int):
        """Batches of sentences of similar length (section 5.1).

        Returns:
            a function that gives the training batches, without end, from the number `first` on, with the lines they
            are of if `lines`; a summary of a pass over them; the dev batches; a summary of those.
        """
        max_length = self.max_length or tt.data.MAX_LENGTH

        def with_translations(pairs):
            return tt.data.with_translations(pairs, self.translations)

        def batches_of(pairs, **options):
            ids = self.pair_ids and self.pair_ids(tokenizer)
            return tt.data.token_batches(pairs, tokenizer, batch_tokens, max_length, pair_ids=ids, **options)

        def training(first, lines=False):
            if self.records:
                batches = self.records.batches(batch_tokens, seed, first, lines)
            else:
                pairs = tt.data.numbered(self.train) if lines else self.train
                both_ways, one_way = (
                    batches_of(text, repeat=True, seed=seed)
                    for text in (tt.data.both_directions(pairs), with_translations(pairs))
                )
                done = min(first, self.bidirectional_steps)  # where these are all, none is made to be skipped
                both_ways = both_ways.skip(done).take(self.bidirectional_steps - done)
                batches = both_ways.concatenate(one_way.skip(first - done))
            return tt.data.without_words(batches, self.word_dropout, seed, first, self.bidirectional_steps)

        if self.records:
            summary = self.records.summary(batch_tokens, seed)
        else:
            summary = tt.data.summarize(batches_of(with_translations(self.train), shuffle=False), self.count)
        dev = batches_of(tt.data.in_memory(*self.dev), shuffle=False)
        print(f"training text: {summary}; vocabulary of {tokenizer.vocab_size:,}")
        if not summary.pairs:
            raise tt.BadInput(f"expected sentences of at most {max_length} tokens to train on, got none")
        dev_summary = tt.data.summarize(dev, len(self.dev[0]))
        print(f"dev text: {dev_summary}")
        return training, summary, dev, dev_summary


def watch_bleu(tt, dev, **options):
    """The `watch` of `Texts` for translations: BLEU of greedy ones. `options` are those of `DevScore`."""

    def watch(model, tokenizer, logs):
        greedy = tt.Translator(model, tokenizer, beam_size=1)
        return tt.callbacks.DevScore(
            "BLEU", greedy, lambda *texts: tt.bleu.bleu(*texts).value, *dev, logs=logs, **options
        )

    return watch


def compiled(tt, args, strategy, config, recipe, steps: int):
    """A model of this configuration, ready to be trained for so many steps (sections 5.3 and 5.4)."""
    import keras

    keras.utils.set_random_seed(args.seed)
    if args.mixed_precision:
        keras.config.set_dtype_policy(f"mixed_{args.mixed_precision}")
    with strategy.scope():  # not around `fit`: what the chief alone makes there is not to be mirrored
        model = tt.Transformer(config)
        model.build()
        model.parts, model.skip_not_finite = args.parts, args.on_nan == "skip"
        warmup, cooldown = recipe["warmup_steps"], min(recipe.get("cooldown_steps", 0), steps)
        schedule = tt.WarmupSchedule(config.d_model, warmup, recipe["factor"], cooldown, steps)
        model.compile(
            optimizer=tt.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9, global_clipnorm=args.clip_norm),
            loss=tt.SmoothedCrossEntropy(config.label_smoothing),
            metrics=[tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()],
        )
    return model


def learn(tt, args, strategy, config, recipe, run, settings, texts: Texts) -> bool:
    """Train, from the run's last checkpoint if there is one.

    Args:
        strategy: where, from `distribution.strategy`.
        args: what `add_training_options` gave.
        run: its folder is begun with `settings` and the tokenizer.

    Returns:
        whether this process is to score and export; not where the run was complete before, nor where another writes.
    """
    import keras

    chief, replicas = tt.distribution.is_chief(strategy), strategy.num_replicas_in_sync
    run.writes = chief
    is_there = run.exists(settings)
    tt.distribution.wait_for_all(strategy)  # until then, what they find is the same
    if chief and not is_there:
        tokenizer = texts.learn_tokenizer()
    else:
        if not is_there:
            tt.distribution.wait_for_all(strategy)  # for the chief
        tokenizer = tt.Tokenizer.load(run.path / "tokenizer.model")
    batches, summary, dev_batches, dev_summary = texts.batches(tt, tokenizer, recipe["batch_tokens"], args.seed)
    if chief and not is_there:
        tokenizer.save(run.path / "tokenizer.model")
        run.begin(settings)
        tt.distribution.wait_for_all(strategy)

    steps = args.epochs * summary.batches if args.epochs else (args.steps or config.train_steps)
    interval = -(-steps // max(1, round(steps / recipe["eval_every"])))
    newest = run.newest()
    began = step = newest[1]["step"] if newest else 0
    print(f"model: {args.preset}, {tt.costs.parameters(config):,} parameters, {replicas} x; run: {run.path}")
    if step:
        print(f"going on from the checkpoint at step {step:,} of {steps:,}")
    for until, rate in growing(config.dropout, recipe.get("dropout_steps", 0), interval, steps).items():
        if until < steps:
            if step >= until:
                continue
            print(f"to step {until:,} with P_drop = {rate:.2g}")
        model = compiled(tt, args, strategy, dataclasses.replace(config, dropout=rate), recipe, steps)
        with strategy.scope():
            state = run.restore(model) or tt.callbacks.START
        progress = tt.callbacks.Progress(run, state, steps, alone=not tt.distribution.is_a_worker(strategy))
        while progress.step < until:
            print(f"below, an epoch is the {interval:,} steps to the next checkpoint")
            first, done = divmod(progress.step, interval)  # where it was stopped, an epoch may be partly done
            callbacks = [tt.callbacks.NumbersGoneWrong(batches, progress.step, model.skip_not_finite), progress]
            if chief:
                board = keras.callbacks.TensorBoard(str(run.path / "logs"), write_graph=False)
                callbacks = [texts.watch(model, tokenizer, run.path / "logs"), *callbacks, board]
            with progress.hears_signals():
                model.fit(
                    tt.data.for_replicas(batches(progress.step), replicas),
                    steps_per_epoch=interval - done,
                    initial_epoch=first,
                    epochs=first + 1 if done else -(-until // interval),
                    validation_data=tt.data.for_replicas(dev_batches, replicas),
                    validation_steps=dev_summary.batches,
                    shuffle=False,  # the batches are
                    callbacks=callbacks,
                )
        tt.distribution.wait_for_all(strategy)  # for the chief, to save where the next stage begins
        step = until
    if chief and began >= steps and (run.path / "metrics.json").exists():
        print(f"this run is complete: {(run.path / 'metrics.json')} says")
        print((run.path / "metrics.json").read_text())
        print(f"Give more --steps to train on, or another --run to start anew (this one did {began:,}).")
        return False
    return chief


def growing(rate: float, over: int, interval: int, steps: int) -> dict[int, float]:
    """How dropout grows (Morerio et al. 2017): in each third of `over` steps a third of its rate more, none at first.

    Returns:
        the rate before each of these steps, the ends of such thirds at checkpoints, and the last.
    """
    ends = [-(-over * third // (3 * interval)) * interval for third in (1, 2, 3)]
    stages: dict[int, float] = {}
    for third, end in enumerate([*ends, steps]):
        stages.setdefault(min(end, steps), rate * third / 3)
    return stages


def averaged(tt, args, run, *others: Path):
    """The `Translator` of the run's last checkpoints (section 6.1), and of those of the runs in other folders."""
    count = len(run.checkpoints()[-args.average_last :])
    of_each = f" of each of {1 + len(others)} models, an ensemble" if others else ""
    print(f"averaging the last {count} checkpoints{of_each}; beam search with {args.beam_size} beams", flush=True)
    return tt.Translator.from_run([run.path, *others], args.average_last, beam_size=args.beam_size, alpha=args.alpha)


def publish(tt, args, run, export, metrics: dict, examples: list[str]) -> Path:
    """Write the SavedModel, checked, and metrics.json, with what the last checkpoint says; show that it answers.

    Args:
        export: the root of the SavedModel.
        metrics: what was measured.
        examples: texts for a fresh process to give to the SavedModel.
    """
    from tf_transformer.serving.publish import next_version, save_export

    print("writing the SavedModel, and checking that it can be served", flush=True)
    saved = next_version(args.export)
    state = json.loads((run.checkpoints()[-1] / "state.json").read_text())
    export.describe(step=state["step"])
    save_export(export, saved, checked=True)
    metrics = metrics | {
        "steps": state["step"],
        "target_tokens": state["target_tokens"],
        "seconds": round(state["seconds"], 1),
        "parameters": export.facts["parameters"],
    }
    tt.files.write_json(run.path / "metrics.json", metrics)
    print(f"saved {saved}; a fresh process loads it and answers:", flush=True)
    command = [sys.executable, "-m", "trainers.translate", str(saved)]
    answer = subprocess.run(command, input="\n".join(examples) + "\n", capture_output=True, text=True, encoding="utf-8")
    if answer.returncode:
        sys.exit(f"the SavedModel did not answer:\n{answer.stderr}")
    for source, output in zip(examples, answer.stdout.splitlines(), strict=True):
        print(f"  {source}\n    -> {output}")
    return saved
