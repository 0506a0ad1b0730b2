"""Score translations against references: BLEU in several variants and chrF, each with its sacreBLEU signature.

Paired bootstrap compares each translation with the first one.
"""

import os
from typing import get_args

import tf_transformer as tt
from tf_transformer.decoding.search_options import LANGUAGES, SEARCH_OPTIONS
from tf_transformer.utils.files import write_text
from tf_transformer.utils.type_names import MetricName

from .command import add_call_options, answered, as_path, check_needs, engine, of_calls, options, positive, run_program


def main(argv: list[str] | None = None) -> None:
    parser = options("evaluate", __doc__)
    add = parser.add_argument
    files = "reference translations, one sentence per line. Several files hold several references of each sentence"
    add("--reference", required=True, nargs="+", metavar="FILE", help=files)
    add("--translations", nargs="+", default=[], metavar="FILE", help="translations to score, line by line")
    models = "models that translate --source: exports, runs or checkpoints"
    add("--model", nargs="+", default=[], metavar="DIR", help=models)
    add("--source", metavar="FILE", help="text to translate with --model")
    add_call_options(add)
    add("--output", type=as_path, metavar="FILE", help="file for the translations of one model (none)")
    metrics = "additional metrics: chrF++, TER (lower is better) or spBLEU, whose tokenizer sacreBLEU downloads"
    add("--metric", nargs="+", default=[], choices=get_args(MetricName)[2:], metavar="NAME", help=metrics)
    samples = "number of bootstrap samples for the confidence intervals (1000)"
    add("--samples", type=positive, default=1_000, metavar="N", help=samples)
    args = parser.parse_args(argv)
    if not (args.model or args.translations):
        parser.error("expected --translations or --model")
    if args.model and not args.source:
        parser.error("--model: expected --source as well")
    check_needs(parser, args, dict.fromkeys(("source", *SEARCH_OPTIONS, *LANGUAGES), ("model",)))
    if args.output and len(args.model) != 1:
        parser.error(f"--output: expected one --model, got {len(args.model)}")
    if args.output and (args.output.is_dir() or not os.access(args.output.parent, os.W_OK)):
        parser.error(f"--output: expected a file in a writable directory, got {args.output}")
    names = [*args.translations, *args.model]
    if len({*names}) < len(names):
        parser.error(f"--translations, --model: expected each name once, got {' '.join(names)}")

    def with_references(file: str) -> tuple[list[str], list[list[str]]]:
        """Reads a file's lines, and as many of each reference."""
        pairs = [tt.data.read_text_pairs(file, reference, empty_lines=True) for reference in args.reference]
        return pairs[0][0], [references for _, references in pairs]

    tt.bleu.metrics([], args.metric)  # raises before the models translate
    systems, source, references = dict[str, list[str]](), list[str](), list[list[str]]()
    for name in args.translations:
        systems[name], references = with_references(name)
    if args.model:
        source, references = with_references(args.source)
    for name in args.model:
        replies = list(answered(engine(name, vars(args)), source, **of_calls(vars(args))))
        systems[name] = [reply.text for reply in replies]
        if args.output:
            write_text(args.output, (f"{reply.line}\n" for reply in replies))
    scores = tt.bleu.compare(systems, references, args.samples, args.metric)
    print(f"{len(references[0]):,} sentences; ± is the 95 % confidence interval of {args.samples:,} bootstrap samples")
    for name in systems:
        print(f"\n{name}")
        for metric, by_system in scores.items():
            score = by_system[name]
            chance = "" if score.p_value is None else f"  p = {score.p_value:.3f}"
            print(f"  {metric:27}{score.value:6.2f} ± {score.interval:.2f}{chance}  {score.signature}")


if __name__ == "__main__":
    run_program(main)
