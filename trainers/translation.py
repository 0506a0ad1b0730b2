"""Train a Transformer to translate, score it, and export it. The default is the toy corpus, which takes minutes."""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import tf_transformer as tt

from . import command


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parses the options, and checks those that exclude or need each other."""
    parser = command.options("translation", __doc__)
    add = parser.add_argument
    presets = "tiny (2 minutes on 2 cores), multi30k (72), small, base, big, Table 3's (tiny)"
    add("--preset", metavar="NAME", help=presets)
    start = "fine-tune this model: a run, SavedModel or checkpoint, or a name on the Hub"
    add("--from", dest="start", metavar="MODEL", help=start)
    add = parser.add_argument_group("data").add_argument
    command.add_corpus_options(add)
    prepared = "train on records of tf-transformer prepare, not on --train"
    add("--prepared", type=command.as_path, metavar="DIR", help=prepared)
    dev = "dev set: SOURCE TARGET, or a share (0.02) or number (500) of the --train pairs"
    add("--dev", nargs="+", metavar="FILE", help=dev)
    add("--test", nargs=2, metavar=("SOURCE", "TARGET"), help="test set to score the result on (the dev set)")
    command.add_training_options(parser)
    command.add_search_options(parser, without=command.EXPORTS)
    args = parser.parse_args(argv)
    vocabulary = args.vocab_size or args.tokenizer or args.tokenizer_file
    if args.start and (args.preset or vocabulary or args.dry_run is not None):
        names = "--preset, --vocab-size, --vocab-kind, --tokenizer or --dry-run"
        parser.error(f"--from: cannot be combined with {names}, since the model has sizes and a tokenizer")
    if args.tokenizer_file and (args.vocab_size or args.tokenizer):
        parser.error("--tokenizer: cannot be combined with --vocab-size or --vocab-kind")
    if (args.train and (args.tfds or args.prepared)) or (args.directions and (args.train or args.tfds)):
        parser.error("expected one of --train, --tfds, --directions and --prepared, got several")
    if args.directions and not args.start:
        parser.error("--directions: expected --from MODEL, a multilingual model")
    if args.directions and args.test:
        parser.error("--test: cannot be combined with --directions. The dev sets are scored.")
    has_pairs = args.train or (args.directions and not args.prepared)
    if args.tfds and (args.dev or args.test):
        parser.error("--dev and --test: cannot be combined with --tfds, which has both")
    if (args.train or args.prepared) and not (args.dev or args.tfds or args.directions):
        parser.error(f"--dev: expected SOURCE TARGET, {'or --tfds' if args.prepared else 'or a share such as 0.02'}")
    share = command.number_in(args.dev[0]) if args.dev and has_pairs and len(args.dev) == 1 else ""
    is_share = isinstance(share, int | float) and share > 0
    if args.dev and not is_share and (args.directions or len(args.dev) != 2):
        expected = "a share or a number of pairs" if args.directions else "SOURCE TARGET"
        number = ", or a share or a number of pairs" if args.train else ""
        parser.error(f"--dev: expected {expected}{number}, got {' '.join(args.dev)}")
    if not (has_pairs or args.prepared) and (args.dev or args.test):
        parser.error("--dev and --test: expected --train SOURCE TARGET or --prepared DIR as well")
    if args.prepared and (vocabulary or args.skip_bad_lines or args.filter):
        names = "--vocab-size, --vocab-kind, --tokenizer, --skip-bad-lines or --filter"
        parser.error(f"--prepared: cannot be combined with {names}. Pass them to tf-transformer prepare.")
    command.check_needs(parser, args, command.CORPUS_NEEDS)
    args.preset = args.preset or "tiny"
    return args


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    began = time.perf_counter()
    print("loading Keras ...", flush=True)
    on_tensorflow = command.load_backend() == "tensorflow"
    from . import publishing

    # TensorFlow's devices can only be set before it computes anything.
    strategy = tt.distribution.strategy(args.devices)
    start, tokenizer, *directions = command.opened(args, check=not args.prepared)
    records = tt.Records(args.prepared) if args.prepared else None
    choices = vars(args) | {"start": start}
    if vocabulary := tokenizer or (records.tokenizer if records and not start else None):
        choices["vocab_size"] = vocabulary.vocab_size
    config, recipe = publishing.plan_of(choices, "translation")
    search = publishing.search_of(vars(args))

    # All input is checked before anything is written.
    name = "finetuned" if start else args.preset if args.train or args.tfds or args.prepared else "demo"
    folder = args.run or Path("runs") / name
    root = publishing.export_folder(vars(args), folder, strategy)
    if args.dry_run is not None and args.tfds and not is_downloaded(args):
        print(f"{args.tfds} is not downloaded yet, so its texts are not checked")
        return publishing.show_plan(config, recipe, args.dry_run)
    corpus = corpus_of(args, records, *directions)

    trainer = tt.Trainer(folder, config, corpus, recipe, strategy=strategy, start=start, tokenizer=tokenizer)
    if args.dry_run is not None:
        trainer.check()
        return publishing.show_plan(config, recipe, args.dry_run)
    trainer.fit()
    if not trainer.writes or publishing.is_complete(trainer):
        return
    translator = publishing.averaged(trainer, search)
    saved = publishing.score_and_publish(trainer, translator, root if on_tensorflow else None)
    commands = f"""  echo "{(corpus.test or corpus.dev)[0][0]}" | tf-transformer translate {saved}
  tensorboard --logdir {trainer.run.path / "logs"}
  tf-transformer translation --help      # your own text: --train SOURCE TARGET --dev SOURCE TARGET"""
    publishing.say_done(began, folder, root, commands if saved else None)


def tfds_of(args: argparse.Namespace) -> tuple[Any, ...]:
    """Returns name, languages and directory of --tfds."""
    return args.tfds, tuple(args.languages or ("en", "de")), args.tfds_dir


def is_downloaded(args: argparse.Namespace) -> bool:
    """Returns whether the corpus of --tfds is on this machine, which --dry-run must not change."""
    name, languages, folder = tfds_of(args)
    return tt.sources.TfdsSource(name, languages=languages, data_dir=folder).is_prepared()


def corpus_of(
    args: argparse.Namespace, records: "tt.Records | None", directions: Any, dev_directions: Any
) -> "tt.Corpus":
    """Returns the training, dev and test data that the options name, by default the toy corpus."""
    filters = tt.Filters.parse(args.filter)
    dev = command.number_in(args.dev[0]) if args.dev and len(args.dev) == 1 else args.dev
    if args.train:
        return tt.TextCorpus(args.train, dev, args.test, args.skip_bad_lines, filters)
    if directions:
        if not (dev := dev or dev_directions):
            raise tt.BadInput("--directions: expected dev files in a line, or a share such as --dev 0.02; got neither")
        return tt.Corpus(records or directions, dev, filters=filters)
    tfds = tt.TfdsCorpus(*tfds_of(args)) if args.tfds else None
    if records and tfds:
        return tt.Corpus(records, tfds.dev, tfds.test, tfds.languages)
    if records:
        dev_texts = tt.data.read_text_pairs(*args.dev)
        return tt.Corpus(records, dev_texts, tt.data.read_text_pairs(*args.test) if args.test else None)
    return dataclasses.replace(tfds or tt.ToyCorpus(), filters=filters)


if __name__ == "__main__":
    command.run_program(main)
