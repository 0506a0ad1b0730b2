"""Train a Transformer to parse English (section 6.3), score it as EVALB does, and export it as a SavedModel.

The parser takes one sentence per line, words and punctuation separated by spaces. Run it with tf-transformer translate.
"""

import time
from pathlib import Path

import tf_transformer as tt
from tf_transformer.extensions.parsing import evalb, treebank

from .command import add_search_options, add_training_options, check_needs, load_backend, options, run_program


def main(argv: list[str] | None = None) -> None:
    parser = options("parsing", __doc__)
    add = parser.add_argument
    presets = "parsing_small, parsing_wsj or parsing_semi (parsing_small)"
    add("--preset", default="parsing_small", metavar="NAME", help=presets)
    add("--train", nargs="+", metavar="FILE", help="bracketed trees")
    add("--dev", nargs="+", metavar="FILE", help="dev set: bracketed trees")
    add("--test", nargs="+", metavar="FILE", help="test set to score the result on (the dev set)")
    add("--wsj", metavar="DIR", help="directory of wsj_NNNN.mrg: sections 2-21 to train, 22 as dev, 23 as test set")
    add("--extra", nargs="+", metavar="FILE", help="additional training trees, made by a parser")
    add("--extra-ratio", type=float, metavar="R", help="number of --extra trees per --train tree (1.0)")
    add("--no-tags", dest="tags", action="store_false", help="learn XX for every word instead of its tag")
    add_training_options(parser)
    # A tree's words determine its minimum length, and the search is exact.
    add_search_options(parser, without=["min_length", "patience"])
    args = parser.parse_args(argv)
    if bool(args.wsj) == bool(args.train):
        parser.error("expected either --wsj DIR or --train FILE")
    if args.train and not args.dev:
        parser.error("--train: expected --dev FILE as well")
    if args.wsj and (args.dev or args.test):
        parser.error("--wsj: cannot be combined with --dev or --test, which are sections 22 and 23")
    if args.extra_ratio is not None and args.extra_ratio <= 0:
        parser.error(f"--extra-ratio: expected a number above 0, got {args.extra_ratio}")
    check_needs(parser, args, {"extra_ratio": ("extra",)})
    began = time.perf_counter()
    print("loading Keras ...", flush=True)
    on_tensorflow = load_backend() == "tensorflow"
    from tf_transformer.extensions.parsing.corpus import words_of, wsj

    from . import costs, publishing

    # TensorFlow's devices can only be set before it computes anything.
    strategy = tt.distribution.strategy(args.devices)
    config, recipe = publishing.plan_of(vars(args), "parsing")
    search = publishing.search_of(vars(args))

    # All input is checked before anything is written.
    folder = args.run or Path("runs") / args.preset
    root = publishing.export_folder(vars(args), folder, strategy)
    train, dev, test = wsj(args.wsj) if args.wsj else (args.train, args.dev, args.test)
    corpus = tt.TreebankCorpus(train, dev, test, args.tags, args.extra or (), args.extra_ratio or 1.0)
    gold, trees = treebank.read_trees(train), treebank.read_trees(test or dev)

    trainer = tt.Trainer(folder, config, corpus, recipe, strategy=strategy)
    if args.dry_run is not None:
        trainer.check()
        return publishing.show_plan(config, recipe, args.dry_run)
    trainer.fit()
    if not trainer.writes or publishing.is_complete(trainer):
        return
    learned = publishing.averaged(trainer, search)
    sources, _ = corpus.test or corpus.dev
    result = trainer.evaluate(translator=learned)["F1"]
    sample = gold[:: -(-len(gold) // 500)]
    train_result = evalb.total(sample, map(treebank.read_tree, learned([words_of(tree) for tree in sample])))
    unconstrained = learned.symbols(sources)
    counts = [len(tree.leaves()) for tree in trees]
    ill_formed = sum(not treebank.is_well_formed(*pair) for pair in zip(unconstrained, counts, strict=True))
    repaired = evalb.total(trees, map(treebank.to_tree, unconstrained, map(treebank.words_of, trees)))
    print(f"test: {result}\ntraining trees: {train_result}")
    share = f"{ill_formed:,} of {len(trees):,} outputs"
    print(f"without the grammar, {share} are not trees. Repaired, they have F1 {repaired.f1:.2f}")
    names = ("f1", "precision", "recall", "complete_match")
    metrics = {f"test_{name}": round(getattr(result, name), 2) for name in names}
    metrics |= {"test_f1_text": publishing.TEST if test else publishing.DEV, "train_f1": round(train_result.f1, 2)}
    metrics |= {"ill_formed_without_grammar": round(ill_formed / len(trees), 4), "repaired_f1": round(repaired.f1, 2)}
    metrics |= {name: learned.options[name] for name in ("beam_size", "length_penalty")}
    if not on_tensorflow:
        publishing.record(trainer.run, metrics, costs.parameters(config))
        return publishing.say_done(began, folder, root, None)
    export = learned.export(f1=metrics["test_f1"], f1_text=metrics["test_f1_text"])
    saved = publishing.publish(trainer.run, export, root, metrics, sources[:3])
    print(treebank.drawn(treebank.read_tree(learned(sources[0]))))
    publishing.say_done(began, folder, root, f'  echo "The cat sat on the mat ." | tf-transformer translate {saved}')


if __name__ == "__main__":
    run_program(main)
