"""Train the rows of Table 3 with equal budgets, and write a table and a picture with the paper's figures beside them.

Each row trains in RUN/ROW; a complete row is not trained again.
"""

import dataclasses
from pathlib import Path
from typing import Any

from trainers.command import add_search_options, add_training_options, chosen, load_tensorflow, options, run_program

# Changes to a row's recipe, by --scale.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {"eval_every": 5_000},
    "multi30k": {"steps": 2_500, "batch_tokens": 2_048, "warmup_steps": 600, "eval_every": 500},
}


def main(argv: list[str] | None = None) -> None:
    parser = options("train", __doc__, package="examples.table3")
    add = parser.add_argument
    add("--rows", default="all", metavar="LIST", help="all, or rows and groups such as base,A,B_dk16 (all)")
    add("--scale", default="multi30k", choices=sorted(RECIPES), help="size of base: paper or multi30k (multi30k)")
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), required=True, help="parallel text, plain or .gz")
    add("--dev", nargs=2, metavar=("SOURCE", "TARGET"), required=True, help="parallel text to score each row with")
    add_training_options(parser)
    add_search_options(parser)
    args = parser.parse_args(argv)
    if args.dropout is not None:
        parser.error("--dropout: cannot be set, since each row sets it")
    if args.dry_run is not None or args.name or args.base:
        parser.error("--dry-run, --name, --base: pass them to tf-transformer translation --preset ROW instead")
    print("loading TensorFlow ...", flush=True)
    load_tensorflow()
    import keras

    import tf_transformer as tt
    from examples.table3 import table as table3
    from tf_transformer.training.recipe import recipe_of
    from tf_transformer.utils.files import write_json
    from tf_transformer.utils.reading import read_json, reading
    from trainers import costs
    from trainers.publishing import averaged, changed, is_complete, search_of

    rows = table3.chosen(args.rows)
    strategy = tt.distribution.strategy(args.devices)
    search = search_of(vars(args))
    changes = RECIPES[args.scale] | {"average_last": 1, "dev_sentences": 200}  # Table 3 averages no checkpoints
    recipes = {row: changed(changed(recipe_of(row), changes), vars(args)) for row in rows}
    folder = args.run or Path("runs") / f"table3-{args.scale}"
    corpus = tt.TextCorpus(args.train, args.dev)
    tokenizer, lines = None, []
    for row in rows:
        print(f"\n{row}: {table3.difference(row, args.scale) or 'as the paper has it'}")
        config = table3.scaled(row, args.scale)
        config = dataclasses.replace(config, **chosen(vars(args), ["vocab_size"]))
        keras.utils.clear_session()
        trainer = tt.Trainer(folder / row, config, corpus, recipes[row], strategy=strategy, tokenizer=tokenizer)
        trainer.fit()
        tokenizer = tt.Tokenizer.load(trainer.run.path / "tokenizer.model")  # one for all rows
        metrics = trainer.run.path / "metrics.json"
        if trainer.writes and not is_complete(trainer):
            bleu = trainer.evaluate(translator=averaged(trainer, search))["BLEU"]
            last = trainer.run.history[-1]
            measurements = {"dev_bleu": round(bleu.value, 2), "dev_bleu_signature": bleu.signature}
            measurements |= {"dev_perplexity": round(last["val_perplexity"], 3), "steps": last["step"]}
            write_json(metrics, measurements | {"parameters": costs.parameters(config)})
        if trainer.writes:
            with reading(metrics, "the scores of a row"):
                lines.append(table3.line_of(row, args.scale, read_json(metrics)))
            table3.write(lines, folder)
    print(f"\n{table3.as_markdown(lines)}\nwritten: {folder / 'table3.csv'}, table3.md, table3.png")


if __name__ == "__main__":
    run_program(main)
