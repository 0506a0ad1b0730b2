"""Train a Transformer to translate, score it, and export it: in minutes, without arguments, on a small grammar."""

import argparse
import itertools
import time
from pathlib import Path

from trainers.command import add_tfds_options, languages, load_tensorflow, options, run_program
from trainers.learning import (
    Texts,
    add_training_options,
    averaged,
    check_training_options,
    choose,
    choose_export,
    learn,
    publish,
    show_plan,
    watch_bleu,
)
from trainers.teachers import learn_from_teachers

AS_THE_PAPER = {
    "dropout_steps": 0,
    "bidirectional_steps": 0,
    "word_dropout": 0.0,
    "student_dropout": 0.1,
    "cooldown_steps": 0,
}
RECIPES = {  # what a preset is trained with, besides its configuration
    "tiny": {"batch_tokens": 2_048, "warmup_steps": 300, "factor": 1.0, "eval_every": 80} | AS_THE_PAPER,
    # A learning rate of 0.005 at its highest (Wu et al. 2021).
    "multi30k": {"batch_tokens": 4_096, "warmup_steps": 2_000, "factor": 2.53, "eval_every": 250} | AS_THE_PAPER,
    "small": {"batch_tokens": 2_048, "warmup_steps": 800, "factor": 1.0, "eval_every": 500}
    | AS_THE_PAPER
    | {"dropout_steps": 4_500, "bidirectional_steps": 6_000, "word_dropout": 0.1, "cooldown_steps": 3_000},
    # Ten minutes between checkpoints, as the paper has them on 8 P100.
    "base": {"batch_tokens": 25_000, "warmup_steps": 4_000, "factor": 1.0, "eval_every": 1_500} | AS_THE_PAPER,
    "big": {"batch_tokens": 25_000, "warmup_steps": 4_000, "factor": 1.0, "eval_every": 600} | AS_THE_PAPER,
}


def arguments(argv) -> argparse.Namespace:
    parser = options("translation", __doc__)
    add = parser.add_argument
    presets = "a configuration: tiny, small, multi30k, base, big, or a row of Table 3 (tiny)"
    add("--preset", default="tiny", help=presets)
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, a sentence a line, plain or .gz")
    add("--dev", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to watch the training with")
    add("--test", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to score the result with (the dev text)")
    add("--skip-bad-lines", action="store_true", help="train without empty, over-long and invalid lines")
    add("--prepared", type=Path, metavar="DIR", help="records that trainers.prepare wrote, instead: for large corpora")
    add_tfds_options(add)
    add("--export", type=Path, metavar="DIR", help="where the SavedModel goes (savedmodels/NAME OF THE RUN)")
    growing = "P_drop grows from 0, by a third at a time, in so many first steps (the preset's)"
    add("--dropout-steps", type=int, metavar="N", help=growing)
    both = "learn from every pair in both directions for so many first steps (the preset's)"
    add("--bidirectional-steps", type=int, metavar="N", help=both)
    words = "hide a share of the words from the model in the steps after them (the preset's)"
    add("--word-dropout", type=float, metavar="RATE", help=words)
    teachers = "train others for the bidirectional steps, in these runs; learn from what they say"
    add("--teachers", nargs="+", default=[], type=Path, metavar="DIR", help=teachers)
    ensemble = "the teachers learn as the model does, each from the next, and translate with it"
    add("--ensemble", action="store_true", help=ensemble)
    add("--student-dropout", type=float, metavar="RATE", help="P_drop in what then is learned from them (the preset's)")
    cooldown = "the learning rate falls to 0 in so many last steps (the preset's)"
    add("--cooldown-steps", type=int, metavar="N", help=cooldown)
    add_training_options(add, beam_size=4, alpha=0.6)
    args = parser.parse_args(argv)
    if args.train and (args.tfds or args.prepared):
        parser.error("expected --train, or --tfds, or --prepared; got --train and another")
    if args.tfds and args.dev:
        parser.error("expected --dev or --tfds, which has a dev text, got both")
    if (args.train or args.prepared) and not (args.dev or args.tfds):
        parser.error("expected --dev SOURCE TARGET, or --tfds beside --prepared")
    if not (args.train or args.prepared) and (args.dev or args.test):
        parser.error("expected --train SOURCE TARGET beside --dev and --test")
    for name in ("dropout_steps", "bidirectional_steps", "cooldown_steps"):
        if (getattr(args, name) or 0) < 0:
            parser.error(f"--{name.replace('_', '-')}: expected 0 or more, got {getattr(args, name)}")
    if args.teachers and args.epochs:
        parser.error("expected --steps beside --teachers, who learn from less text than the model, got --epochs")
    for name in ("word_dropout", "student_dropout"):
        if not 0 <= (getattr(args, name) or 0) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a rate in [0, 1), got {getattr(args, name)}")
    for option, given in (("student-dropout", args.student_dropout is not None), ("ensemble", args.ensemble)):
        if given and not args.teachers:
            parser.error(f"--{option}: expected --teachers beside it, got none")
    if args.prepared and (args.vocab_size or args.skip_bad_lines):
        parser.error("expected --vocab-size and --skip-bad-lines at trainers.prepare, not beside --prepared")
    check_training_options(parser, args)
    return args


def main(argv=None) -> None:
    args = arguments(argv)
    began = time.perf_counter()
    print("loading TensorFlow ...", flush=True)
    tt = load_tensorflow()
    from tf_transformer.serving.export import Export

    strategy = tt.distribution.strategy(args.devices)  # before TensorFlow computes anything
    records = tt.records.Records(args.prepared) if args.prepared else None
    if records:
        args.vocab_size = records.tokenizer.vocab_size
    config, recipe, settings = choose(tt, args, RECIPES, "base")
    if records and (recipe["bidirectional_steps"] or args.teachers):
        raise tt.BadInput(
            "--prepared: expected --bidirectional-steps 0 and no --teachers, since records are read in one direction"
        )
    if args.teachers and not recipe["bidirectional_steps"]:
        raise tt.BadInput("--teachers: expected --bidirectional-steps above 0, for which they are trained; got 0")
    if args.teachers and (args.steps or config.train_steps) <= recipe["bidirectional_steps"]:
        raise tt.BadInput(
            f"--teachers: expected more --steps than the {recipe['bidirectional_steps']:,} bidirectional, "
            f"got {args.steps or config.train_steps:,}"
        )
    if args.dry_run:
        show_plan(tt, args, config, recipe)
        if args.teachers:
            more = "as much" if args.ensemble else f"{recipe['bidirectional_steps']:,} steps"
            print(f"and {more} for each of {len(args.teachers)} teachers")
        return
    settings["data"] |= {"train": (records and str(records.folder)) or args.train or args.tfds or "grammar"}
    name = args.preset if args.train or args.tfds or records else "demo"
    run = tt.run.Run(args.run or Path("runs") / name, keep=args.average_last)

    # Everything a user gave is looked at before anything is written.
    choose_export(tt, args, strategy, run)
    pairs, sentences, count, dev, test = read_corpus(tt, args)

    def learn_tokenizer():
        return records.tokenizer if records else tt.Tokenizer.learn_from(sentences(), config.vocab_size, args.tokenizer)

    beyond = {name: recipe[name] for name in ("bidirectional_steps", "word_dropout")}
    texts = Texts(pairs, count, dev, learn_tokenizer, watch_bleu(tt, dev), records, **beyond)
    if args.teachers:
        config, texts = learn_from_teachers(tt, args, strategy, config, recipe, run, settings, texts)
    if not learn(tt, args, strategy, config, recipe, run, settings, texts):
        return

    # Section 6.1: average the last checkpoints, beam search with length penalty.
    translator = averaged(tt, args, run, *(args.teachers if args.ensemble else []))
    translations = translator(test[0])
    bleu, chrf = tt.bleu.bleu(translations, test[1]), tt.bleu.chrf(translations, test[1])
    metrics = {
        "test_bleu": round(bleu.value, 2),
        "test_bleu_signature": bleu.signature,
        "test_chrf": round(chrf.value, 2),
    }
    print(f"BLEU {bleu.value:.2f}  {bleu.signature}\nchrF {chrf.value:.2f}  {chrf.signature}")
    facts = {"bleu": metrics["test_bleu"], "bleu_signature": bleu.signature}
    facts |= languages(settings, args.languages if args.tfds else None)
    export = Export(translator, max_beam_size=max(16, args.beam_size), **facts)
    examples = test[0][:3]
    saved = publish(tt, args, run, export, metrics, examples)
    print(f"""done in {(time.perf_counter() - began) / 60:.1f} minutes. Next:
  echo "{examples[0]}" | python -m trainers.translate {saved}
  tensorboard --logdir {run.path / "logs"}
  python -m trainers.translation --help      # your own text: --train SOURCE TARGET --dev SOURCE TARGET""")


def read_corpus(tt, args):
    """Training pairs as a dataset of strings, a function that gives its sentences, their number, dev and test text.

    The first three are not used where there are records.
    """
    if args.tfds:
        train, dev, test = (
            tt.data.tfds_pairs(args.tfds, split, tuple(args.languages), args.tfds_dir)
            for split in ("train", "validation", "test")
        )
        dev, test = tt.data.to_lists(dev), tt.data.to_lists(test)
        return train, lambda: tt.data.each_sentence(train), int(train.cardinality()), dev, test
    if args.dev:
        dev = tt.data.read_text_pairs(*args.dev)
        test = tt.data.read_text_pairs(*args.test) if args.test else dev
        if args.prepared:
            return None, None, None, dev, test
        count = tt.data.check_text_pairs(*args.train, args.skip_bad_lines)
        train = tt.data.text_lines(*args.train, args.skip_bad_lines)
        return train, lambda: tt.tokenizer.sentences(args.train), count, dev, test
    corpus = tt.grammar.corpus(seed=args.seed)
    train, dev, test = (tuple(map(list, zip(*corpus[split], strict=True))) for split in ("train", "dev", "test"))
    return tt.data.in_memory(*train), lambda: itertools.chain(*train), len(train[0]), dev, test


if __name__ == "__main__":
    run_program(main)
