"""Tokenize a large corpus once, into shards of TFRecords that trainers.translation --prepared reads.

What is there already is kept: a program that was stopped goes on when started again with the same options.
"""

import time
from pathlib import Path

from trainers.command import add_tfds_options, load_tensorflow, options, run_program


def main(argv: list[str] | None = None) -> None:
    parser = options("prepare", __doc__)
    add = parser.add_argument
    add("--train", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text, plain or .gz")
    add_tfds_options(add)
    add("--to", type=Path, required=True, metavar="DIR", help="where the records go")
    add("--vocab-size", type=int, default=37_000, metavar="N", help="of the shared vocabulary (37,000)")
    add("--tokenizer", default="bpe", choices=["bpe", "unigram"], metavar="KIND", help="bpe or unigram (bpe)")
    sample = "sentences to learn the vocabulary from (1,000,000)"
    add("--sample", type=int, default=1_000_000, metavar="N", help=sample)
    add("--skip-bad-lines", action="store_true", help="leave out empty, over-long and invalid lines")
    args = parser.parse_args(argv)
    if bool(args.train) == bool(args.tfds):
        parser.error("expected either --train SOURCE TARGET or --tfds NAME")
    if args.tfds and args.skip_bad_lines:
        parser.error("--skip-bad-lines: expected --train beside it")
    print("loading TensorFlow ...", flush=True)
    load_tensorflow()
    import tf_transformer as tt

    if args.tfds:
        pairs = tt.data.tfds_pairs(args.tfds, "train", tuple(args.languages), args.tfds_dir)
        count, texts = int(pairs.cardinality()), tt.data.each_sentence(pairs)
    else:
        count = tt.data.check_text_pairs(*args.train, args.skip_bad_lines)
        pairs, texts = tt.data.text_lines(*args.train, args.skip_bad_lines), tt.tokenizer.sentences(args.train)
    if (args.to / "tokenizer.model").exists():
        tokenizer = tt.Tokenizer.load(args.to / "tokenizer.model")
    else:
        print(f"{count:,} pairs; learning a vocabulary of {args.vocab_size:,}", flush=True)
        tokenizer = tt.Tokenizer.learn_from(texts, args.vocab_size, args.tokenizer, sample=args.sample)
    began, tokens, skipped = time.perf_counter(), 0, 0
    for shard in tt.records.write_records(pairs, tokenizer, args.to):
        tokens, skipped = tokens + sum(shard["tokens"]), skipped + shard["skipped"]
        rate = tokens / (time.perf_counter() - began)
        print(f"  {shard['file']}: {sum(shard['lengths']):,} pairs, {rate:,.0f} tokens/s", flush=True)
    summary = tt.records.Records(args.to).summary(batch_tokens=25_000)
    print(f"{args.to}: {summary.pairs:,} pairs, {summary.source_tokens:,} + {summary.target_tokens:,} tokens, ", end="")
    print(f"{summary.skipped:,} too long or empty\nnow: python -m trainers.translation --prepared {args.to} --dev ...")


if __name__ == "__main__":
    run_program(main)
