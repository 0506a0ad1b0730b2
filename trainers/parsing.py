"""Train a Transformer to parse English (section 6.3), score it as EVALB does, and export it as a SavedModel.

Its input is a sentence a line, words and punctuation with spaces between them; `trainers.translate` parses with it.
"""

import argparse
import dataclasses
import itertools
import time
from pathlib import Path

from trainers.command import load_tensorflow, options, run_program
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
)

RECIPES = {  # what a preset is trained with, besides its configuration
    "parsing_small": {"batch_tokens": 2_048, "warmup_steps": 600, "factor": 1.5, "eval_every": 1_000},
    "parsing_wsj": {"batch_tokens": 25_000, "warmup_steps": 4_000, "factor": 1.0, "eval_every": 1_000},
}
WSJ = {"train": range(2, 22), "dev": [22], "test": [23]}  # sections


def arguments(argv) -> argparse.Namespace:
    parser = options("parsing", __doc__)
    add = parser.add_argument
    add("--preset", default="parsing_small", help="parsing_small, parsing_wsj or parsing_semi (parsing_small)")
    add("--train", nargs="+", metavar="FILE", help="bracketed trees")
    add("--dev", nargs="+", metavar="FILE", help="trees to watch the training with")
    add("--test", nargs="+", metavar="FILE", help="trees to score the result with (the dev trees)")
    add("--wsj", metavar="DIR", help="instead: wsj_NNNN.mrg, sections 2-21 to train, 22 as dev, 23 as test")
    add("--extra", nargs="+", metavar="FILE", help="trees made by a parser, to train on besides")
    add("--extra-ratio", type=float, default=1.0, metavar="R", help="so many of them for each of --train (1.0)")
    add("--no-tags", dest="tags", action="store_false", help="learn XX for every word instead of its tag")
    add("--tune", action="store_true", help="choose beams and alpha by the dev trees, before the test")
    add("--tune-dropout", nargs="+", type=float, metavar="P", help="train with each, choose by the dev trees")
    add("--export", type=Path, metavar="DIR", help="where the SavedModel goes (savedmodels/NAME OF THE RUN)")
    add_training_options(add, beam_size=4, alpha=0.3)
    args = parser.parse_args(argv)
    if bool(args.wsj) == bool(args.train):
        parser.error("expected either --wsj DIR or --train FILE")
    if args.train and not args.dev:
        parser.error("expected --dev FILE beside --train")
    if args.wsj and (args.dev or args.test):
        parser.error("--wsj: expected neither --dev nor --test, which are sections 22 and 23")
    if args.extra_ratio <= 0:
        parser.error(f"--extra-ratio: expected a number above 0, got {args.extra_ratio}")
    if args.tune_dropout and args.dropout is not None:
        parser.error("expected --dropout or --tune-dropout, got both")
    check_training_options(parser, args)
    return args


def main(argv=None) -> None:
    args = arguments(argv)
    began = time.perf_counter()
    print("loading TensorFlow ...", flush=True)
    tt = load_tensorflow()
    from tf_transformer.parsing import evalb, treebank
    from tf_transformer.parsing import parser as parsing
    from tf_transformer.serving.export import ParserExport

    strategy = tt.distribution.strategy(args.devices)  # before TensorFlow computes anything
    config, recipe, settings = choose(tt, args, RECIPES, "parsing_wsj")
    if args.dry_run:
        return show_plan(tt, args, config, recipe)
    settings["data"] |= {"train": args.wsj or args.train, "tags": args.tags}
    if args.extra:
        settings["data"] |= {"extra": args.extra, "extra_ratio": args.extra_ratio}
    run = tt.run.Run(args.run or Path("runs") / args.preset, keep=args.average_last)

    # Everything a user gave is looked at before anything is written.
    choose_export(tt, args, strategy, run)
    trees = {split: treebank.read_trees(files) for split, files in corpus_files(treebank, args).items()}
    for split, found in trees.items():
        if not found:
            raise tt.BadInput(f"expected trees with words in the {split} files, got none")
    gold, dev, test = trees["train"], trees["dev"], trees["test"]
    train = mixed(gold, trees["extra"], args.extra_ratio) if args.extra else gold

    def sources(trees):
        return [" ".join(treebank.words_of(tree)) for tree in trees]

    def pairs(trees):
        return sources(trees), [" ".join(treebank.linearised(tree, args.tags)) for tree in trees]

    train_pairs = pairs(train)

    def learn_tokenizer():
        symbols = sorted({symbol for line in train_pairs[1] for symbol in line.split()})
        return tt.Tokenizer.learn_from(train_pairs[0], config.vocab_size, args.tokenizer, symbols=symbols)

    def parser_of(model, tokenizer, beam_size, alpha):
        translator = tt.Translator(model, tokenizer, beam_size, alpha, parsing.EXTRA_LENGTH)
        return parsing.Parser(translator)

    def f1(outputs, references):
        return evalb.total(map(treebank.read_tree, references), map(treebank.read_tree, outputs)).f1

    def watch(model, tokenizer, logs):
        lines = [treebank.as_line(tree) for tree in dev]
        return tt.callbacks.DevScore(
            "F1", parser_of(model, tokenizer, 1, 0.0), f1, sources(dev), lines, show=1, logs=logs
        )

    given = (tt.data.in_memory(*train_pairs), len(train), pairs(dev))
    texts = Texts(*given, learn_tokenizer, watch, pair_ids=parsing.pair_ids, max_length=parsing.MAX_LENGTH)
    run = learn_best(tt, args, strategy, config, recipe, run, settings, texts)
    if not run:
        return
    learned = averaged(tt, args, run)
    model, tokenizer = learned.model, learned.tokenizer

    def score_of(parser, trees):
        return evalb.total(trees, map(treebank.read_tree, parser(sources(trees))))

    beam_size, alpha = args.beam_size, args.alpha
    if args.tune:
        scores = {}
        for beam_size, alpha in itertools.product((1, 4, 8), (0.0, 0.3, 0.6)):
            scores[beam_size, alpha] = score_of(parser_of(model, tokenizer, beam_size, alpha), dev).f1
            print(f"dev F1 {scores[beam_size, alpha]:.2f} with {beam_size} beams, alpha {alpha}", flush=True)
        beam_size, alpha = max(scores, key=lambda options: scores[options])
    parser = parser_of(model, tokenizer, beam_size, alpha)
    result = score_of(parser, test)
    known = score_of(parser, gold[:: -(-len(gold) // 500)])
    free = parser.symbols(sources(test))
    ill_formed = sum(
        not treebank.is_well_formed(line, len(tree.leaves())) for line, tree in zip(free, test, strict=True)
    )
    repaired = evalb.total(test, map(treebank.to_tree, free, map(treebank.words_of, test)))
    print(f"test: {result}\ntraining trees: {known}")
    print(f"without the grammar {ill_formed:,} of {len(test):,} are no trees; repaired: F1 {repaired.f1:.2f}")
    metrics = {
        "test_f1": round(result.f1, 2),
        "test_precision": round(result.precision, 2),
        "test_recall": round(result.recall, 2),
        "test_complete_match": round(result.complete_match, 2),
        "train_f1": round(known.f1, 2),
        "ill_formed_without_grammar": round(ill_formed / len(test), 4),
        "repaired_f1": round(repaired.f1, 2),
        "beam_size": beam_size,
        "alpha": alpha,
    }
    saved = publish(tt, args, run, ParserExport(parser, f1=metrics["test_f1"]), metrics, sources(test)[:3])
    print(treebank.drawn(treebank.read_tree(parser(sources(test)[0]))))
    print(f"""done in {(time.perf_counter() - began) / 60:.1f} minutes. Next:
  echo "The cat sat on the mat ." | python -m trainers.translate {saved}""")


def corpus_files(treebank, args) -> dict[str, list]:
    """The files of each split."""
    if args.wsj:
        files = {split: treebank.wsj_files(args.wsj, sections) for split, sections in WSJ.items()}
    else:
        files = {"train": args.train, "dev": args.dev, "test": args.test or args.dev}
    return files | ({"extra": args.extra} if args.extra else {})


def learn_best(tt, args, strategy, config, recipe, run, settings, texts: Texts):
    """`learn`; for --tune-dropout once with each rate, in RUN/dropout-RATE.

    Returns:
        the run to score and export, of several that with the best dev F1 at its end; `None` if there is nothing to do.
    """
    if not args.tune_dropout:
        return run if learn(tt, args, strategy, config, recipe, run, settings, texts) else None
    import keras

    configs = [dataclasses.replace(config, dropout=rate) for rate in args.tune_dropout]
    to_do, scores = {}, {}
    for config in configs:
        print(f"\ndropout {config.dropout}")
        keras.utils.clear_session()
        one = tt.run.Run(run.path / f"dropout-{config.dropout}", keep=args.average_last)
        settings = settings | {"model": settings["model"] | {"dropout": config.dropout}}
        to_do[one] = learn(tt, args, strategy, config, recipe, one, settings, texts)
        scores[one] = one.history[-1].get("dev_f1", 0.0)  # not where the chief alone looks
        print(f"dev F1 {scores[one]:.2f} with dropout {config.dropout}")
    best = max(scores, key=scores.__getitem__)
    print(f"going on with {best.path}")
    return best if to_do[best] else None


def mixed(gold: list, extra: list, ratio: float) -> list:
    """Gold trees, as often as it takes, and `ratio` times as many others."""
    times = max(1, round(len(extra) / (ratio * len(gold))))
    return gold * times + extra[: round(ratio * len(gold) * times)]


if __name__ == "__main__":
    run_program(main)
