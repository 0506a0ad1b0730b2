"""Train a Transformer to translate, score it, and export it as a SavedModel.

Without arguments it learns English to German from a small grammar of its own, in a few minutes, and shows how it goes.
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

from trainers.command import languages, load_tensorflow, options, run_program

RECIPES = {  # what a preset is trained with, besides its configuration
    "tiny": {"batch_tokens": 2_048, "warmup_steps": 300, "factor": 1.0, "eval_every": 80},
    "multi30k": {"batch_tokens": 4_096, "warmup_steps": 2_000, "factor": 2.0, "eval_every": 500},
    "base": {"batch_tokens": 25_000, "warmup_steps": 4_000, "factor": 1.0, "eval_every": 1_000},
}


def arguments(argv) -> argparse.Namespace:
    parser = options("translation", __doc__, "A run that was stopped goes on when started again with the same options.")
    add = parser.add_argument
    add("--preset", default="tiny", help="a configuration: tiny, multi30k, base, big, or a row of Table 3 (tiny)")
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, a sentence a line, plain or .gz")
    add("--dev", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to watch the training with")
    add("--test", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text to score the result with (the dev text)")
    add("--skip-bad-lines", action="store_true", help="train without empty, over-long and invalid lines")
    add("--tfds", metavar="NAME", help="a corpus of TensorFlow Datasets instead, e.g. wmt14_translate/de-en")
    add("--languages", nargs=2, default=["en", "de"], metavar="XX", help="its source and target (en de)")
    add("--tfds-dir", metavar="DIR", help="where TensorFlow Datasets keeps its corpora")
    add("--run", type=Path, metavar="DIR", help="the run's folder (runs/demo, or runs/PRESET)")
    add("--export", type=Path, metavar="DIR", help="where the SavedModel goes (savedmodels/NAME OF THE RUN)")
    add("--steps", type=int, help="updates (the preset's)")
    add("--epochs", type=int, help="passes over the training text, instead of --steps")
    add("--batch-tokens", type=int, metavar="N", help="source tokens, and target tokens, a batch (the preset's)")
    add("--vocab-size", type=int, metavar="N", help="of the vocabulary that both languages share (the preset's)")
    add("--tokenizer", default="bpe", choices=["bpe", "unigram"], metavar="KIND", help="bpe or unigram (bpe)")
    add("--warmup-steps", type=int, metavar="N", help="steps in which the learning rate grows (the preset's)")
    add("--factor", type=float, help="multiplies equation (3)'s learning rate (the preset's)")
    add("--dropout", type=float, help="P_drop (the preset's)")
    add("--eval-every", type=int, metavar="STEPS", help="steps between checkpoints and looks at the dev text")
    add("--average-last", type=int, default=5, metavar="N", help="checkpoints kept, and averaged at the end (5)")
    add("--beam-size", type=int, default=4, help="beams in the final translations (4)")
    add("--alpha", type=float, default=0.6, help="exponent of the length penalty (0.6)")
    add(
        "--mixed-precision",
        choices=["bfloat16", "float16"],
        metavar="DTYPE",
        help="bfloat16 or float16 to compute in, with weights in float32",
    )
    add("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    if args.train and args.tfds:
        parser.error("expected --train or --tfds, got both")
    if args.train and not args.dev:
        parser.error("expected --dev SOURCE TARGET beside --train")
    if not args.train and (args.dev or args.test):
        parser.error("expected --train SOURCE TARGET beside --dev and --test")
    for name in ("steps", "epochs", "batch_tokens", "warmup_steps", "eval_every", "average_last", "beam_size"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")
    return args


def main(argv=None) -> None:
    args = arguments(argv)
    began = time.perf_counter()
    print("loading TensorFlow ...", flush=True)
    tt = load_tensorflow()
    import keras

    from tf_transformer.serving.export import Export
    from tf_transformer.serving.publish import next_version, save_export

    config, recipe = choose(tt, args)
    name = args.preset if args.train or args.tfds else "demo"
    run = tt.run.Run(args.run or Path("runs") / name, keep=args.average_last)
    settings = {
        "model": {key: value for key, value in config.to_dict().items() if key != "train_steps"},
        "training": {key: value for key, value in recipe.items() if key != "eval_every"},
        "data": {"tokenizer": args.tokenizer, "seed": args.seed, "mixed_precision": args.mixed_precision},
    }
    settings["data"] |= {"train": args.train or args.tfds or "grammar"}

    # Everything a user gave is looked at before anything is written.
    pairs, sentences, count, dev, test = read_corpus(tt, args)
    is_there = run.exists(settings)
    if is_there:
        tokenizer = tt.Tokenizer.load(run.path / "tokenizer.model")
    else:
        tokenizer = tt.Tokenizer.learn_from(sentences(), config.vocab_size, args.tokenizer)

    # Section 5.1: batches of sentences of similar length.
    batches = tt.data.token_batches(pairs, tokenizer, recipe["batch_tokens"], repeat=True, seed=args.seed)
    once = tt.data.token_batches(pairs, tokenizer, recipe["batch_tokens"], shuffle=False)
    summary = tt.data.summarize(once, count)
    print(f"training text: {summary}; vocabulary of {tokenizer.vocab_size:,}")
    if not summary.pairs:
        raise tt.BadInput(f"expected sentences of at most {tt.data.MAX_LENGTH} tokens to train on, got none")
    dev_batches = tt.data.token_batches(tt.data.in_memory(*dev), tokenizer, recipe["batch_tokens"], shuffle=False)
    dev_summary = tt.data.summarize(dev_batches, len(dev[0]))
    print(f"dev text: {dev_summary}")
    if not is_there:
        tokenizer.save(run.path / "tokenizer.model")
        run.begin(settings)

    # Sections 5.3 and 5.4: optimizer, schedule, regularization.
    keras.utils.set_random_seed(args.seed)
    if args.mixed_precision:
        keras.config.set_dtype_policy(f"mixed_{args.mixed_precision}")
    model = tt.Transformer(config)
    model.build()
    schedule = tt.WarmupSchedule(config.d_model, recipe["warmup_steps"], recipe["factor"])
    model.compile(
        optimizer=tt.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9),
        loss=tt.SmoothedCrossEntropy(config.label_smoothing),
        metrics=[tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()],
    )
    print(f"model: {args.preset}, {model.count_params():,} parameters; run: {run.path}")

    state = run.restore(model) or {"step": 0, "seconds": 0.0, "target_tokens": 0}
    steps = args.epochs * summary.batches if args.epochs else (args.steps or config.train_steps)
    left = steps - state["step"]
    if state["step"]:
        print(f"going on from the checkpoint at step {state['step']:,} of {steps:,}")
    if left > 0:
        intervals = max(1, round(left / recipe["eval_every"]))
        first = round(state["step"] / recipe["eval_every"])
        greedy = tt.Translator(model, tokenizer, beam_size=1)
        steps_per_epoch = -(-left // intervals)
        print(f"below, an epoch is the {steps_per_epoch:,} steps to the next checkpoint")
        model.fit(
            batches.skip(state["step"]),
            steps_per_epoch=steps_per_epoch,
            initial_epoch=first,
            epochs=first + intervals,
            validation_data=dev_batches,
            validation_steps=dev_summary.batches,
            shuffle=False,  # the batches are
            callbacks=[
                tt.run.DevBleu(greedy, *dev),
                tt.run.Progress(run, state),
                keras.callbacks.TensorBoard(str(run.path / "logs"), write_graph=False),
            ],
        )
    elif (run.path / "metrics.json").exists():
        print(f"this run is complete: {(run.path / 'metrics.json')} says")
        print((run.path / "metrics.json").read_text())
        print(f"Give more --steps to train on, or another --run to start anew (this one did {state['step']:,}).")
        return

    # Section 6.1: average the last checkpoints, beam search with length penalty.
    weights = run.weights(args.average_last)
    print(f"averaging the last {len(weights)} checkpoints; beam search with {args.beam_size} beams", flush=True)
    tt.average_weights(model, weights)
    translator = tt.Translator(model, tokenizer, args.beam_size, args.alpha)
    translations = translator(test[0])
    bleu, chrf = tt.bleu.bleu(translations, test[1]), tt.bleu.chrf(translations, test[1])
    state = json.loads((run.checkpoints()[-1] / "state.json").read_text())
    metrics = {
        "test_bleu": round(bleu.value, 2),
        "test_bleu_signature": bleu.signature,
        "test_chrf": round(chrf.value, 2),
        "steps": state["step"],
        "target_tokens": state["target_tokens"],
        "seconds": round(state["seconds"], 1),
        "parameters": model.count_params(),
    }
    print(f"BLEU {bleu.value:.2f}  {bleu.signature}\nchrF {chrf.value:.2f}  {chrf.signature}")

    print("writing the SavedModel, and checking that it can be served", flush=True)
    saved = next_version(args.export or Path("savedmodels") / run.path.name)
    facts = {"step": state["step"], "bleu": metrics["test_bleu"], "bleu_signature": bleu.signature}
    facts |= languages(settings, args.languages if args.tfds else None)
    save_export(Export(translator, **facts), saved, checked=True)
    tt.run.write_json(run.path / "metrics.json", metrics)
    print(f"saved {saved}; a fresh process loads it and translates:", flush=True)
    examples = test[0][:3]
    command = [sys.executable, "-m", "trainers.translate", str(saved)]
    answer = subprocess.run(command, input="\n".join(examples) + "\n", capture_output=True, text=True, encoding="utf-8")
    if answer.returncode:
        sys.exit(f"the SavedModel did not answer:\n{answer.stderr}")
    for source, translation in zip(examples, answer.stdout.splitlines(), strict=True):
        print(f"  {source}\n    -> {translation}")
    print(f"""done in {(time.perf_counter() - began) / 60:.1f} minutes. Next:
  echo "{examples[0]}" | python -m trainers.translate {saved}
  tensorboard --logdir {run.path / "logs"}
  python -m trainers.translation --help      # your own text: --train SOURCE TARGET --dev SOURCE TARGET""")


def choose(tt, args):
    """The configuration and the recipe that the options describe."""
    if args.preset not in tt.PRESETS:
        raise tt.BadInput(f"--preset: expected one of {', '.join(tt.PRESETS)}; got {args.preset!r}")
    changes = {name: getattr(args, name) for name in ("vocab_size", "dropout") if getattr(args, name) is not None}
    config = dataclasses.replace(tt.PRESETS[args.preset], **changes)
    recipe = dict(RECIPES.get(args.preset, RECIPES["base"]))
    recipe |= {name: getattr(args, name) for name in recipe if getattr(args, name) is not None}
    return config, recipe


def read_corpus(tt, args):
    """Training pairs as a dataset of strings, a function that gives its sentences, their number, dev and test text."""
    if args.train:
        count = tt.data.check_text_pairs(*args.train, args.skip_bad_lines)
        dev = tt.data.read_text_pairs(*args.dev)
        test = tt.data.read_text_pairs(*args.test) if args.test else dev
        train = tt.data.text_lines(*args.train, args.skip_bad_lines)
        return train, lambda: tt.tokenizer.sentences(args.train), count, dev, test
    if args.tfds:
        train, *rest = (
            tt.data.tfds_pairs(args.tfds, split, tuple(args.languages), args.tfds_dir)
            for split in ("train", "validation", "test")
        )
        dev, test = (tt.data.to_lists(pairs) for pairs in rest)
        return train, lambda: tt.data.each_sentence(train), int(train.cardinality()), dev, test
    corpus = tt.grammar.corpus(seed=args.seed)
    train, dev, test = (tuple(map(list, zip(*corpus[split], strict=True))) for split in ("train", "dev", "test"))
    return tt.data.in_memory(*train), lambda: itertools.chain(*train), len(train[0]), dev, test


if __name__ == "__main__":
    run_program(main)
