"""Train a Transformer to translate, score it, and export it; by default on the package's toy corpus, in minutes."""

import time
from pathlib import Path

from .command import (
    EXPORTS,
    add_search_options,
    add_tfds_options,
    add_training_options,
    as_path,
    export_folder,
    load_backend,
    options,
    run_program,
)


def main(argv: list[str] | None = None) -> None:
    parser = options("translation", __doc__)
    add = parser.add_argument
    presets = "tiny (2 minutes on 2 cores), multi30k (72), small, base, big, Table 3's (tiny)"
    add("--preset", metavar="NAME", help=presets)
    pretrained = "fine-tune a run, a SavedModel, or a checkpoint: a folder, or a name on the hub"
    add("--from", dest="start", metavar="MODEL", help=pretrained)
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, a sentence a line, plain or .gz")
    watching = "SOURCE TARGET to watch the training with; or 0.02 or 500 pairs of --train"
    add("--dev", nargs="+", metavar="FILE", help=watching)
    add("--test", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to score the result with (the dev text)")
    add("--skip-bad-lines", action="store_true", help="train without empty, over-long and invalid lines")
    own = "a vocabulary to take, instead of learning one: a tokenizer.model"
    add("--tokenizer", type=as_path, dest="tokenizer_file", metavar="FILE", help=own)
    add("--prepared", type=as_path, metavar="DIR", help="records of tf-transformer prepare instead, for large corpora")
    add_tfds_options(add)
    add_training_options(add)
    add_search_options(add, without=EXPORTS)
    args = parser.parse_args(argv)
    vocabulary = args.vocab_size or args.tokenizer or args.tokenizer_file
    if args.start and (args.preset or vocabulary or args.dry_run is not None):
        not_so = "--preset, --vocab-size, --vocab-kind, --tokenizer and --dry-run"
        parser.error(f"--from: expected none of {not_so} with it, since the model has its own sizes and tokenizer")
    if args.tokenizer_file and (args.vocab_size or args.tokenizer):
        parser.error("--tokenizer: expected no --vocab-size and no --vocab-kind with it, since nothing is learned")
    args.preset = args.preset or "tiny"
    if args.train and (args.tfds or args.prepared):
        parser.error("expected one of --train, --tfds and --prepared, got --train and another")
    if args.tfds and args.dev:
        parser.error("expected --dev or --tfds, which has a dev text, got both")
    if (args.train or args.prepared) and not (args.dev or args.tfds):
        parser.error(f"expected --dev SOURCE TARGET with it, {'or --tfds' if args.prepared else 'or --dev 0.02'}")
    if args.dev and len(args.dev) != 2 and not (args.train and len(args.dev) == 1 and _is_number(args.dev[0])):
        number = ", or a share or a number of pairs" if args.train else ""
        parser.error(f"--dev: expected SOURCE TARGET{number}, got {' '.join(args.dev)}")
    if not (args.train or args.prepared) and (args.dev or args.test):
        parser.error("expected --train SOURCE TARGET with --dev and --test")
    if args.prepared and (vocabulary or args.skip_bad_lines):
        not_so = "--vocab-size, --vocab-kind, --tokenizer or --skip-bad-lines"
        parser.error(f"--prepared: expected no {not_so}; give them to tf-transformer prepare")
    began = time.perf_counter()
    print("loading Keras ...", flush=True)
    on_tensorflow = load_backend() == "tensorflow"
    import tf_transformer as tt
    from tf_transformer.data.records import Records
    from tf_transformer.models.families import load_tokenizer
    from tf_transformer.serving.versions import next_version

    from .publishing import averaged, is_complete, plan_of, score_and_publish, search_of, show_plan

    strategy = tt.distribution.strategy(args.devices)  # before TensorFlow computes anything
    start = tt.Translator.from_pretrained(args.start) if args.start else None
    if start and start.tokenizer.controls:
        raise tt.BadInput(f"--from {args.start}: expected a model that translates, got a parser")
    records = Records(args.prepared) if args.prepared else None
    given = vars(args) | {"start": start}
    own_tokenizer = load_tokenizer(args.tokenizer_file) if args.tokenizer_file else None
    if vocabulary := own_tokenizer or (records.tokenizer if records and not start else None):
        given["vocab_size"] = vocabulary.vocab_size
    config, recipe = plan_of(given, "translation")
    search = search_of(vars(args))
    if args.dry_run is not None:
        return show_plan(config, recipe, args.dry_run)

    # All input is checked before anything is written.
    name = "finetuned" if start else args.preset if args.train or args.tfds or args.prepared else "demo"
    folder = args.run or Path("runs") / name
    root = export_folder(vars(args), folder)
    if on_tensorflow and tt.distribution.is_chief(strategy):
        next_version(root)
    if args.train:
        watched = args.dev if len(args.dev) > 1 else float(args.dev[0])
        corpus = tt.TextCorpus(args.train, watched, args.test, args.skip_bad_lines)
    elif records:
        beside = tt.TfdsCorpus(args.tfds, tuple(args.languages), args.tfds_dir) if args.tfds else None
        dev = beside.dev if beside else tt.data.read_text_pairs(*args.dev)
        test = beside.test if beside else args.test and tt.data.read_text_pairs(*args.test)
        corpus = tt.Corpus(records, dev, test, beside.languages if beside else None)
    elif args.tfds:
        corpus = tt.TfdsCorpus(args.tfds, tuple(args.languages), args.tfds_dir)
    else:
        corpus = tt.ToyCorpus()

    trainer = tt.Trainer(folder, config, corpus, recipe, strategy=strategy, start=start, tokenizer=own_tokenizer)
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


def _is_number(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


if __name__ == "__main__":
    run_program(main)
