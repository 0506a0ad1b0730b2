"""Score translations against references: BLEU in several flavours and chrF, each with its sacreBLEU signature.

Paired bootstrap compares each further translation with the first one.
"""

from tf_transformer.decoding.search_options import SEARCH_OPTIONS
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.utils.files import write_text

from .command import add_call_options, answered, as_path, chosen, engine, of_calls, options, positive, run_program


def main(argv: list[str] | None = None) -> None:
    parser = options("evaluate", __doc__)
    add = parser.add_argument
    references = "the reference translations, a sentence a line; several files hold several of each"
    add("--reference", required=True, nargs="+", metavar="FILE", help=references)
    add("--translations", nargs="+", default=[], metavar="FILE", help="translations to score, line by line")
    add(
        "--model",
        nargs="+",
        default=[],
        metavar="DIR",
        help="models to translate --source with: exports, runs, checkpoints",
    )
    add("--source", help="the text to translate, with --model")
    add_call_options(add)
    add("--output", type=as_path, metavar="FILE", help="where to write the translations of one model")
    add("--samples", type=positive, default=1_000, metavar="N", help="samples for the confidence intervals (1000)")
    args = parser.parse_args(argv)
    if not (args.model or args.translations):
        parser.error("expected --translations or --model")
    if args.model and not args.source:
        parser.error("expected --source with --model")
    if not args.model and (given := chosen(vars(args), (*SEARCH_OPTIONS, *LANGUAGES))):
        parser.error(f"--{next(iter(given)).replace('_', '-')}: expected --model with it")
    if args.output and len(args.model) != 1:
        parser.error(f"--output: expected one --model, got {len(args.model)}")
    if args.output and not args.output.parent.is_dir():
        parser.error(f"--output: expected a file in a folder that exists, got {args.output}")

    import tf_transformer as tt

    def beside(file: str) -> tuple[list[str], list[list[str]]]:
        """A file's lines, and as many of each reference."""
        pairs = [tt.data.read_text_pairs(file, reference, empty_lines=True) for reference in args.reference]
        return pairs[0][0], [references for _, references in pairs]

    systems, source, lists = dict[str, list[str]](), list[str](), list[list[str]]()
    for name in args.translations:
        systems[name], lists = beside(name)
    if args.model:
        source, lists = beside(args.source)
    for name in args.model:
        replies = list(answered(engine(name, vars(args)), source, **of_calls(vars(args))))
        systems[name] = [reply.text for reply in replies]
        if args.output:
            write_text(args.output, (f"{reply.line}\n" for reply in replies))
    scores = tt.bleu.compare(systems, lists, args.samples)
    print(f"{len(lists[0]):,} sentences; ± is the 95 % confidence interval of {args.samples:,} bootstrap samples")
    for name in systems:
        print(f"\n{name}")
        for flavour, found in scores.items():
            score = found[name]
            chance = "" if score.p_value is None else f"  p = {score.p_value:.3f}"
            print(f"  {flavour:27}{score.value:6.2f} ± {score.interval:.2f}{chance}  {score.signature}")


if __name__ == "__main__":
    run_program(main)
