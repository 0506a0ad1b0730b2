"""Export a run: average its last checkpoints, convert the weights, write, check, and publish as the next version.

Several runs become an ensemble, the mean of their probabilities. A run of trainers.parsing becomes a parser. --marian
exports a pretrained MarianMT checkpoint instead. An export that fails a check is not published, so a server that
watches the folder never sees it.
"""

import json
from pathlib import Path
from typing import Any

from trainers.command import add_search_options, chosen, load_tensorflow, options, run_program


def main(argv: list[str] | None = None) -> None:
    parser = options("export", __doc__)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    runs = "the run's folder, e.g. runs/demo; several folders make an ensemble"
    what.add_argument("--run", nargs="+", type=Path, metavar="DIR", help=runs)
    marian = "a MarianMT checkpoint instead: its folder, or its name on the Hugging Face hub, e.g. opus-mt-en-de"
    what.add_argument("--marian", metavar="NAME", help=marian)
    add("--name", required=True, help="the model's name on the server")
    add("--base", type=Path, metavar="DIR", help="the folder of all models (savedmodels; ctranslate2 for that format)")
    add("--version", type=int, metavar="N", help="version number (the next one)")
    add("--average-last", type=int, metavar="N", help="how many of the last checkpoints to average (the recipe's)")
    add(
        "--dtype",
        default="float32",
        metavar="DTYPE",
        help="dtype of weights and products: float32, bfloat16, float16 or int8 (float32)",
    )
    add(
        "--format",
        default="savedmodel",
        choices=["savedmodel", "ctranslate2"],
        help="a SavedModel, or a folder for CTranslate2 (savedmodel)",
    )
    kinds = "weights of --format ctranslate2: int8, int16, float16 or bfloat16 (float32)"
    add("--quantization", metavar="KIND", help=kinds)
    add_search_options(add, more=("max_length", "n_best"))
    add("--max-beam-size", type=int, metavar="K", help="greatest beam size that a request may ask for (16)")
    add("--dev", nargs="+", metavar="FILE", help="SOURCE TARGET or trees, to score the model in float32 and in --dtype")
    add("--languages", nargs=2, metavar="XX", help="source and target language (the training files' suffixes)")
    args = parser.parse_args(argv)
    for name in ("version", "average_last"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")
    if Path(args.name).name != args.name:
        parser.error(f"--name: expected a name without slashes, got {args.name!r}")
    if args.format == "ctranslate2" and (args.dtype != "float32" or args.dev):
        parser.error("--format ctranslate2: expected neither --dtype nor --dev; use --quantization")
    if args.marian and args.average_last:
        parser.error("--average-last: expected --run with it, got --marian, which has no checkpoints to average")
    if args.format == "ctranslate2" and len(args.run or ()) > 1:
        parser.error(f"--format ctranslate2: expected one --run, since it has no ensembles, got {len(args.run)}")
    if args.format != "ctranslate2" and args.quantization:
        parser.error("--quantization: expected --format ctranslate2 with it")
    load_tensorflow()
    import tf_transformer as tt
    from tf_transformer.corpora.corpus import languages_of
    from tf_transformer.serving import publish as serving
    from tf_transformer.serving.export import ParserExport
    from trainers.publishing import measured, read_dev, scores_of, search_of

    # All input is checked before anything is computed.
    folder = (args.base or Path("savedmodels" if args.format == "savedmodel" else "ctranslate2")) / args.name
    unused = serving.next_version(folder)
    path = folder / str(args.version) if args.version else unused
    if path.exists():
        raise tt.BadInput(f"--version: expected a new one, but {path} exists")
    run = tt.run.Run(args.run[0]) if args.run else None
    settings: dict[str, Any] = run.settings() if run else {"kind": "translation", "corpus": {}}
    parses = settings["kind"] == "parsing"
    of_translations = chosen(vars(args), ("n_best", "max_beam_size", "max_length"))
    if parses and (of_translations or args.languages or args.format == "ctranslate2" or len(args.run) > 1):
        raise tt.BadInput(f"{args.run[0]}: expected options of a parser, since the run is one; got a translator's")
    dev = read_dev(settings, args.dev)

    float32: Any
    if run:
        average_last = args.average_last or settings["recipe"].get("average_last", 5)
        float32 = tt.load(args.run, average_last, **search_of(vars(args)))
        count = len(run.checkpoints()[-average_last:])
        print(f"the mean of {count} checkpoints of {', and as many of '.join(map(str, args.run))}; ", end="")
    else:
        float32 = tt.Translator.from_marian(args.marian, **search_of(vars(args)))
        print(f"{args.marian}, a checkpoint of MarianMT; ", end="")
    learned = float32 if args.dtype == "float32" else float32.astype(args.dtype)
    model = (float32.translator if parses else float32).model
    print(f"{model.count_params():,} parameters", flush=True)

    if args.format == "ctranslate2":
        tt.ctranslate2.save(float32, path, args.quantization)
        print(f"published {path}: CTranslate2, {args.quantization or 'float32'}, {serving.size_of(path):,} bytes")
        return

    facts = {"step": json.loads((run.checkpoints()[-1] / "state.json").read_text())["step"]} if run else {}
    if dev:
        facts |= scores_of(settings["kind"], dev, {"float32": float32, args.dtype: learned})
    elif run:
        found = measured(run, facts["step"], model.count_params())
        facts |= found if args.dtype == "float32" else {}
    if parses:
        export = ParserExport(learned, **facts)
    else:
        languages = args.languages or languages_of(settings["corpus"].get("train")) or ()
        facts |= dict(zip(("source_language", "target_language"), languages, strict=False))
        export = learned.export(**of_translations, **facts)
    print("writing and checking ...", flush=True)
    path = serving.publish(export, folder, args.version)
    size, weights = serving.size_of(path), serving.size_of(path / "variables")
    print(f"published {path}: {args.dtype}, {size:,} bytes, {weights:,} of them weights")


if __name__ == "__main__":
    run_program(main)
