"""Score translations against references: BLEU and chrF, each with its full sacreBLEU signature."""

from trainers.command import load_tensorflow, options, run_program


def main(argv=None) -> None:
    parser = options("evaluate", __doc__)
    parser.add_argument("--reference", required=True, help="the reference translations, a sentence a line")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--translations", metavar="FILE", help="translations to score, line by line")
    what.add_argument("--model", metavar="DIR", help="a SavedModel to translate --source with, e.g. savedmodels/demo/1")
    parser.add_argument("--source", help="the text to translate, with --model")
    parser.add_argument("--output", metavar="FILE", help="where to write the model's translations")
    args = parser.parse_args(argv)
    if args.model and not args.source:
        parser.error("expected --source beside --model")

    tt = load_tensorflow()
    given = args.source if args.model else args.translations
    texts, references = tt.data.read_text_pairs(given, args.reference, empty_lines=True)
    if args.model:
        texts = tt.SavedTranslator(args.model)(texts)
        if args.output:
            tt.run.write_text(args.output, "".join(f"{text}\n" for text in texts))
    for name, metric in (("BLEU", tt.bleu.bleu), ("chrF", tt.bleu.chrf)):
        score = metric(texts, references)
        print(f"{name} {score.value:.2f}  {score.signature}")


if __name__ == "__main__":
    run_program(main)
