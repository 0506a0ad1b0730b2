"""Measures BLEU, search errors and speed of a model's search by patience.

A search error is an output whose score is below that of the exact search, whose patience is infinite. Prints a table
with one line per patience. All run in turn, in one process.
"""

import argparse
import math
import statistics
import time

from benchmarks import common


def main(argv=None) -> list[dict]:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.patience", None, __doc__, formatter_class=formatter)
    add = parser.add_argument
    add("model", metavar="DIR", help="directory of a run, a SavedModel or a checkpoint")
    add("--source", required=True, metavar="FILE", help="sentences to translate")
    add("--reference", required=True, metavar="FILE", help="their references, for BLEU")
    add("--patience", nargs="+", type=float, default=[0.5, 1, 2], metavar="X", help="(0.5 1 2), besides infinity")
    add("--beam-size", type=int, default=4, help="(4)")
    add("--length-penalty", type=float, default=0.6, help="(0.6)")
    add("--sentences", type=int, default=32, help="sentences per batch, sorted by length (32)")
    add("--threads", type=int, default=2, help="threads per operation (2)")
    add("--rounds", type=int, default=3, help="timed translations of the text, after one warm-up (3)")
    args = parser.parse_args(argv)
    common.prepare_tensorflow(args)

    import tf_transformer as tt
    from tf_transformer.evaluation.bleu import bleu
    from tf_transformer.utils.lines import read_text_pairs

    sources, references = read_text_pairs(args.source, args.reference)
    options = {"beam_size": args.beam_size, "length_penalty": args.length_penalty, "batch_size": args.sentences}
    translators = {value: tt.load(args.model, **options, patience=value) for value in [*args.patience, math.inf]}
    best, seconds = {}, {value: [] for value in translators}
    for _ in range(1 + args.rounds):
        for value, translator in translators.items():
            began = time.perf_counter()
            best[value] = [n_best[0] for n_best in translator.n_best(sources, 1)]
            seconds[value].append(time.perf_counter() - began)
    rows = []
    for value, outputs in best.items():
        worse = sum(output.score < exact.score - 1e-4 for output, exact in zip(outputs, best[math.inf], strict=True))
        speed = len(sources) / statistics.median(seconds[value][1:])
        score = bleu([output.text for output in outputs], references).value
        row = {"patience": value, "bleu": score, "search_errors": worse / len(sources), "sentences_per_second": speed}
        rows.append(row)
    print(f"{args.beam_size} beams, length penalty {args.length_penalty}, {len(sources):,} sentences")
    print("| patience | BLEU | search errors | sentences/s | to exact |\n|---|---|---|---|---|")
    for row in rows:
        ratio = row["sentences_per_second"] / rows[-1]["sentences_per_second"]
        print(
            f"| {row['patience']:g} | {row['bleu']:.2f} | {row['search_errors']:.1%} | "
            f"{row['sentences_per_second']:.0f} | {ratio:.2f} |"
        )
    return rows


if __name__ == "__main__":
    main()
