"""Train on a few real pairs, with and without synthetic ones from more target text (docs/guides/back-translation.md).

The first pairs of --train are the real ones. From the pairs after them, only the target texts are used. A reverse model
learns the real pairs from target to source, and samples a source for each additional target. Two models then train for
the same steps: DIR/real on the real pairs, DIR/both on these and the synthetic ones, which have a tag.
"""

import dataclasses
from typing import Any

from trainers.command import as_path, load_backend, options, positive, run_program

TAG = "<bt>"


def main(argv: list[str] | None = None) -> None:
    parser = options("back_translation", __doc__, package="examples")
    add = parser.add_argument
    files: Any = {"nargs": 2, "metavar": ("SOURCE", "TARGET"), "required": True}
    add("--train", **files, help="parallel text, one sentence per line, plain or .gz")
    add("--dev", **files, help="dev set, to validate on")
    add("--run", type=as_path, required=True, metavar="DIR", help="directory of the runs reverse, real and both")
    add("--real", type=positive, default=5_000, metavar="N", help="real pairs (5000)")
    add("--synthetic", type=positive, default=10_000, metavar="N", help="synthetic pairs (10000)")
    add("--k", type=positive, default=10, metavar="N", help="most likely tokens to sample from (10)")
    add("--steps", type=positive, default=2_000, metavar="N", help="steps of each of the three models (2000)")
    args = parser.parse_args(argv)
    print("loading Keras ...", flush=True)
    load_backend()
    import tf_transformer as tt

    source, target = tt.data.read_text_pairs(*args.train)
    dev_source, dev_target = tt.data.read_text_pairs(*args.dev)
    source, extra = source[: args.real], target[args.real : args.real + args.synthetic]
    target = target[: args.real]
    if len(extra) < args.synthetic:
        raise tt.BadInput(f"--train: expected {args.real + args.synthetic:,} pairs, got {len(target) + len(extra):,}")
    config = dataclasses.replace(tt.PRESETS["tiny"], vocab_size=2_000)
    quarter = -(-args.steps // 4)
    recipe = tt.Recipe(args.steps, batch_tokens=2_048, warmup_steps=quarter, cooldown_steps=quarter, dev_sentences=50)

    def trained(name: str, train: Any, dev: Any) -> Any:
        trainer = tt.Trainer(args.run / name, config, tt.Corpus(train, dev), recipe)
        trainer.fit()
        return trainer.translator()

    reverse = trained("reverse", tt.sources.MemorySource(target, source), (dev_target, dev_source))
    print(f"sampling {len(extra):,} sources ...", flush=True)
    sampled = reverse.sample(extra, k=args.k)
    for text, output in zip(extra[:5], sampled, strict=False):
        print(f"  {text} -> {output}")
    real, synthetic = tt.sources.MemorySource(source, target), tt.sources.MemorySource(sampled, extra)
    trained("real", real, (dev_source, dev_target))
    trained("both", tt.sources.TaggedSource({"": real, TAG: synthetic}), (dev_source, dev_target))


if __name__ == "__main__":
    run_program(main)
