"""Export a run in one of several formats: average its last checkpoints, convert the weights, write, check, and publish
as the next version.

Several runs become an ensemble, the mean of their probabilities. A parser's run becomes a parser. --pretrained exports
a pretrained checkpoint. An export that fails a check is not published, so no server loads it.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import tf_transformer as tt
from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.serving.formats import Format, format_of, formats
from tf_transformer.training.recipe import Recipe

from .command import add_search_options, as_path, chosen, load_backend, model_name, options, positive, run_program

TRANSLATES = "translation"  # kind of run of a `Translator`. Engines of other tasks take fewer options.


def arguments(argv: list[str] | None) -> tuple[argparse.Namespace, Format, dict[str, Any]]:
    """Returns the options, the format, and the options that only some formats take."""
    parser = options("export", __doc__)
    add = parser.add_argument
    group = parser.add_mutually_exclusive_group(required=True)
    runs = "run directory, such as runs/demo. Several make an ensemble"
    group.add_argument("--run", nargs="+", type=as_path, metavar="DIR", help=runs)
    pretrained = "pretrained checkpoint: a directory, or a name on the Hugging Face Hub"
    group.add_argument("--pretrained", metavar="NAME", help=pretrained)
    add("--revision", metavar="REV", help="commit, tag or branch of the Hub's model (its main branch)")
    add("--name", type=model_name, help="model name on the server (the name of the first run or of the checkpoint)")
    parent = "parent directory of all models (the format's, such as savedmodels)"
    add("--base", type=as_path, metavar="DIR", help=parent)
    add("--version", type=positive, metavar="N", help="version number (the next one)")
    add("--average-last", type=positive, metavar="N", help="number of last checkpoints to average (the recipe's)")
    titles, first = "; ".join(f"{name}: {format.title}" for name, format in formats().items()), next(iter(formats()))
    add("--format", default=first, choices=formats(), metavar="FORMAT", help=f"{titles} ({first})")
    common = set.intersection(*(set(format.dtypes) for format in formats().values()))
    special = {name: [dtype for dtype in format.dtypes if dtype not in common] for name, format in formats().items()}
    also = "; ".join(f"{name}: also {', '.join(dtypes)}" for name, dtypes in special.items() if dtypes)
    dtypes = f"dtype of the weights: {', '.join(sorted(common))}; {also}; float16 is for GPUs (float32)"
    add("--dtype", default="float32", metavar="DTYPE", help=dtypes)
    add("--no-check", action="store_true", help="publish without the check, which takes most of the time (for trials)")
    add_search_options(parser, more=("max_length", "n_best"))
    add("--max-beam-size", type=positive, metavar="K", help="maximum beam size of requests (16)")
    completions = "add the signature complete, for outputs that start with a given prefix"
    add("--completions", action="store_true", default=None, help=completions)
    shortlist = (
        "shortlist in Marian's format, with the numbers of frequent tokens and of tokens per source token (100 50)"
    )
    add("--shortlist", nargs="+", metavar=("FILE", "N"), help=shortlist)
    add("--dev", nargs="+", metavar="FILE", help="SOURCE TARGET or trees, to score the model in float32 and in --dtype")
    suffixes = "source and target language (the training files' suffixes, or the model's)"
    add("--languages", nargs=2, metavar="XX", help=suffixes)
    add("--license", metavar="NAME", help="license of the weights, such as cc-by-4.0 (the checkpoint's)")
    args = parser.parse_args(argv)
    if args.pretrained and args.average_last:
        parser.error("--average-last: expected --run, got --pretrained, which has no checkpoints to average")
    if args.revision and not args.pretrained:
        parser.error("--revision: expected --pretrained as well")
    if args.name is None:
        path = (args.run[0] if args.run else Path(args.pretrained)).absolute()
        try:
            args.name = model_name(path.name)
        except argparse.ArgumentTypeError:
            parser.error(f"--name: expected one, since {path} has none for a server")
    format = format_of(args.format)
    fixed = chosen(vars(args), ("n_best", "max_beam_size", "max_length", "completions"))
    needs = {"ensemble": len(args.run or ()) > 1, "metadata": args.languages or args.license, "scores": args.dev}
    needs |= dict.fromkeys(fixed, True) | {"shortlist": args.shortlist}
    _, *numbers = args.shortlist or [""]
    if len(numbers) > 2 or not all(map(str.isdecimal, numbers)):
        parser.error(f"--shortlist: expected a file and up to two numbers, got {' '.join(args.shortlist)}")
    if problem := format.problem(args.dtype, needs):
        parser.error(problem)
    return args, format, fixed


def main(argv: list[str] | None = None) -> None:
    args, format, fixed = arguments(argv)
    load_backend()
    from tf_transformer.serving.formats import next_version, publish
    from tf_transformer.training.run import Run
    from tf_transformer.utils.folders import size_of

    from .publishing import read_dev, say_dtypes

    # All input is checked before anything is computed.
    folder = (args.base or Path(format.base)) / args.name
    unused = next_version(folder)
    if args.version and (path := unused.with_name(str(args.version))).exists():
        raise tt.BadInput(f"--version: expected a new one, but {path} exists")
    run = Run(args.run[0]) if args.run else None
    settings: dict[str, Any] = run.settings() if run else {"kind": TRANSLATES, "corpus": {}}
    translates = settings["kind"] == TRANSLATES
    needs = {"tasks": not translates}
    of_translators = fixed or args.languages or args.shortlist or len(args.run or ()) > 1
    if not translates and (of_translators or format.problem(args.dtype, needs)):
        task = settings["kind"]
        raise tt.BadInput(f"{args.run[0]}: expected options of the run's task, {task}, got a translator's")
    dev = read_dev(settings, args.dev) if "scores" in format.takes else None

    float32 = load(args, settings)
    if args.shortlist:
        from tf_transformer.extensions.interop.shortlist import read_shortlist

        file, *numbers = args.shortlist
        float32 = float32.replace(shortlist=read_shortlist(file, float32, *map(int, numbers)))
        print(f"a shortlist of {float32.shortlist}; ", end="")
    model = (float32 if translates else float32.translator).model
    print(f"{model.count_params():,} parameters", flush=True)
    metadata = {}
    if "metadata" in format.takes:
        metadata = metadata_of(args, format, settings, float32, dev, model.count_params())
    print("writing ...", flush=True)
    began = time.monotonic()

    def save(path: Path) -> None:
        dtype = None if args.dtype == "float32" else args.dtype  # `None` is the model's dtype
        format.save(float32, path, dtype, checked=not args.no_check, **fixed, **metadata)

    path = publish(save, folder, args.version)
    size, weights = size_of(path), size_of(path / "variables")
    share = f", {weights:,} of them weights" if weights else ""
    seconds = time.monotonic() - began
    print(f"published {path}: {format.title}, {args.dtype}, {size:,} bytes{share}, in {seconds:.0f} s")
    if args.dtype == "int8" and weights:
        say_dtypes(path, weights, model.count_params())


def load(args: argparse.Namespace, settings: dict[str, Any]) -> Any:
    """Loads the averaged runs or the checkpoint in float32, and prints which."""
    from tf_transformer.inference.translator import trained
    from tf_transformer.training.run import Run
    from tf_transformer.utils.reading import made_of

    from .publishing import search_of

    search = search_of(vars(args))
    if args.pretrained:
        translator = tt.Translator.from_pretrained(args.pretrained, revision=args.revision, **search)
        print(f"the pretrained {args.pretrained}; ", end="")
        return translator
    average_last = args.average_last or made_of(Recipe, settings["recipe"]).averaged
    learned = trained(args.run, average_last=average_last, **search)
    count = len(Run(args.run[0]).averaged(average_last))
    print(f"the mean of {count} checkpoints of {', and as many of '.join(map(str, args.run))}; ", end="")
    return learned


def metadata_of(
    args: argparse.Namespace, format: Format, settings: dict[str, Any], float32: Any, dev: Any, parameters: int
) -> dict[str, Any]:
    """Returns the export's metadata: step, score, languages and license. Scores it on `dev` if there is one."""
    from tf_transformer.data.corpus import languages_of
    from tf_transformer.training.run import Run
    from tf_transformer.utils.reading import read_json

    from .publishing import DEV, language_facts, measured, scores_of

    run = Run(args.run[0]) if args.run else None
    metadata: dict[str, Any] = {"step": read_json(run.checkpoints()[-1] / "state.json")["step"]} if run else {}
    if dev:
        scored = float32.astype(args.dtype)
        by_dtype = {"float32": float32, args.dtype: scored.astype(format.scored_in) if format.scored_in else scored}
        name = ", ".join(Path(file).name for file in args.dev) if args.dev else DEV
        metadata |= scores_of(settings["kind"], dev, by_dtype, name)
    elif run:
        scores = measured(run, metadata["step"], parameters)
        metadata |= scores if args.dtype == "float32" else {}
    if settings["kind"] == TRANSLATES:
        languages = dict(zip(LANGUAGES, args.languages or (), strict=False))
        metadata |= languages or language_facts(float32, languages_of(settings["corpus"].get("train")))
    return metadata | ({"license": args.license} if args.license else {})


if __name__ == "__main__":
    run_program(main)
