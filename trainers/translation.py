"""Train a Transformer to translate, score it, and export it; by default on the package's toy corpus, in minutes."""

import time
from pathlib import Path

from .command import (
    add_search_options,
    add_tfds_options,
    add_training_options,
    as_path,
    load_backend,
    options,
    run_program,
)


def main(argv: list[str] | None = None) -> None:
    parser = options("translation", __doc__)
    add = parser.add_argument
    add("--preset", metavar="NAME", help="tiny, small, multi30k, base, big, or a row of Table 3 (tiny)")
    pretrained = "fine-tune a run, a SavedModel, or a checkpoint: a folder, or a name on the hub"
    add("--from", dest="start", metavar="MODEL", help=pretrained)
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, a sentence a line, plain or .gz")
    add("--dev", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to watch the training with")
    add("--test", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to score the result with (the dev text)")
    add("--skip-bad-lines", action="store_true", help="train without empty, over-long and invalid lines")
    add("--prepared", type=as_path, metavar="DIR", help="records of tf-transformer prepare instead, for large corpora")
    add_tfds_options(add)
    add_training_options(add)
    add_search_options(add)
    args = parser.parse_args(argv)
    if args.start and (args.preset or args.vocab_size or args.tokenizer or args.dry_run):
        not_so = "--preset, --vocab-size, --tokenizer and --dry-run"
        parser.error(f"--from: expected none of {not_so} with it, since the model has its own sizes and tokenizer")
    args.preset = args.preset or "tiny"
    if args.train and (args.tfds or args.prepared):
        parser.error("expected one of --train, --tfds and --prepared, got --train and another")
    if args.tfds and args.dev:
        parser.error("expected --dev or --tfds, which has a dev text, got both")
    if (args.train or args.prepared) and not (args.dev or args.tfds):
        parser.error("expected --dev SOURCE TARGET, or --tfds with --prepared")
    if not (args.train or args.prepared) and (args.dev or args.test):
        parser.error("expected --train SOURCE TARGET with --dev and --test")
    if args.prepared and (args.vocab_size or args.tokenizer or args.skip_bad_lines):
        not_so = "--vocab-size, --tokenizer or --skip-bad-lines"
        parser.error(f"--prepared: expected no {not_so}; give them to tf-transformer prepare")
    began = time.perf_counter()
    print("loading Keras ...", flush=True)
    on_tensorflow = load_backend() == "tensorflow"
    import tf_transformer as tt
    from tf_transformer.corpora.records import Records
    from tf_transformer.exports.versions import next_version

    from .publishing import averaged, is_complete, plan_of, score_and_publish, search_of, show_plan

    strategy = tt.distribution.strategy(args.devices)  # before TensorFlow computes anything
    start = tt.Translator.from_pretrained(args.start) if args.start else None
    if start and start.tokenizer.controls:
        raise tt.BadInput(f"--from {args.start}: expected a model that translates, got a parser")
    records = Records(args.prepared) if args.prepared else None
    given = vars(args) | {"start": start}
    if records and not start:
        given["vocab_size"] = records.tokenizer.vocab_size
    config, recipe = plan_of(given, "translation")
    search = search_of(vars(args))
    if args.dry_run:
        return show_plan(config, recipe, args.dry_run)

    # All input is checked before anything is written.
    name = "finetuned" if start else args.preset if args.train or args.tfds or args.prepared else "demo"
    folder = args.run or Path("runs") / name
    root = args.export or Path("savedmodels") / folder.absolute().resolve().name
    if on_tensorflow and tt.distribution.is_chief(strategy):
        next_version(root)
    if args.train:
        corpus = tt.TextCorpus(args.train, args.dev, args.test, args.skip_bad_lines)
    elif records:
        beside = tt.TfdsCorpus(args.tfds, tuple(args.languages), args.tfds_dir) if args.tfds else None
        dev = beside.dev if beside else tt.data.read_text_pairs(*args.dev)
        test = beside.test if beside else args.test and tt.data.read_text_pairs(*args.test)
        corpus = tt.Corpus(records, dev, test, beside.languages if beside else None)
    elif args.tfds:
        corpus = tt.TfdsCorpus(args.tfds, tuple(args.languages), args.tfds_dir)
    else:
        corpus = tt.ToyCorpus()

    trainer = tt.Trainer(folder, config, corpus, recipe, strategy=strategy, start=start)
    trainer.fit()
    if not trainer.writes or is_complete(trainer):
        return
    translator = averaged(trainer, search)
    saved = score_and_publish(trainer, translator, root if on_tensorflow else None)
    done = f"done in {(time.perf_counter() - began) / 60:.1f} minutes"
    if not saved:
        print(f"""{done}. An export takes the TensorFlow backend; there:
  tf-transformer export --run {folder} --name {root.name}""")
        return
    print(f"""{done}. Next:
  echo "{(corpus.test or corpus.dev)[0][0]}" | tf-transformer translate {saved}
  tensorboard --logdir {trainer.run.path / "logs"}
  tf-transformer translation --help      # your own text: --train SOURCE TARGET --dev SOURCE TARGET""")


if __name__ == "__main__":
    run_program(main)
