"""Export a run: average its last checkpoints, convert the weights, write, check, and publish as the next version.

Several runs become an ensemble: the mean of their probabilities.

What fails a check is not published: a server that watches the folder sees nothing of it.
"""

import argparse
import json
from pathlib import Path

from trainers.command import languages, load_tensorflow, options, run_program


def arguments(argv) -> argparse.Namespace:
    parser = options("export", __doc__)
    add = parser.add_argument
    runs = "the run's folder, e.g. runs/demo; those of several, to translate as an ensemble"
    add("--run", nargs="+", type=Path, required=True, metavar="DIR", help=runs)
    add("--name", required=True, help="what the server will call the model")
    add("--base", type=Path, metavar="DIR", help="where models lie (savedmodels; ctranslate2 for that format)")
    add("--version", type=int, metavar="N", help="the version's number (the next one)")
    add("--average-last", type=int, default=5, metavar="N", help="average so many checkpoints, the last ones (5)")
    add(
        "--dtype",
        default="float32",
        choices=["float32", "bfloat16", "float16"],
        metavar="DTYPE",
        help="float32, bfloat16 or float16 to store and compute in; search and scores are float32 (float32)",
    )
    add("--format", default="savedmodel", choices=["savedmodel", "ctranslate2"], help="or a folder of CTranslate2")
    add(
        "--quantization",
        choices=["int8", "int16", "float16", "bfloat16"],
        metavar="KIND",
        help="int8, int16, float16 or bfloat16 weights, with --format ctranslate2 (float32)",
    )
    add("--beam-size", type=int, default=4, help="beams, if a request does not say (4)")
    add("--alpha", type=float, default=0.6, help="exponent of the length penalty, if a request does not say (0.6)")
    add("--n-best", type=int, default=4, help="translations that `translate` gives (4)")
    add("--max-beam-size", type=int, default=16, help="most beams that a request may ask for (16)")
    add("--max-length", type=int, default=256, help="most tokens of a translation (256)")
    add("--dev", nargs=2, metavar=("SOURCE", "TARGET"), help="parallel text for BLEU, in float32 and in --dtype")
    add("--languages", nargs=2, metavar="XX", help="source and target (as the training files' names end)")
    args = parser.parse_args(argv)
    for name in ("version", "average_last"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")
    if Path(args.name).name != args.name:
        parser.error(f"--name: expected a name without slashes, got {args.name!r}")
    if args.format == "ctranslate2" and (args.dtype != "float32" or args.dev):
        parser.error("--format ctranslate2: expected neither --dtype nor --dev; it has --quantization")
    if args.format == "ctranslate2" and len(args.run) > 1:
        parser.error(f"--format ctranslate2: expected one --run, since it has no ensembles, got {len(args.run)}")
    if args.format != "ctranslate2" and args.quantization:
        parser.error("--quantization: expected --format ctranslate2 beside it")
    args.base = args.base or Path({"savedmodel": "savedmodels", "ctranslate2": "ctranslate2"}[args.format])
    return args


def main(argv=None) -> None:
    args = arguments(argv)
    tt = load_tensorflow()
    from tf_transformer.serving.export import Export
    from tf_transformer.serving.publish import next_version, save_export, size_of

    # Everything a user gave is looked at before anything is computed.
    folder = args.base / args.name
    unused = next_version(folder)
    path = folder / str(args.version) if args.version else unused
    if path.exists():
        raise tt.BadInput(f"--version: expected a new one, but {path} exists")
    run = tt.run.Run(args.run[0])
    settings = run.settings()
    dev = read_dev(tt, args, settings)

    float32 = tt.Translator.from_run(args.run, args.average_last, beam_size=args.beam_size, alpha=args.alpha)
    translator = float32 if args.dtype == "float32" else float32.astype(args.dtype)
    count = len(run.checkpoints()[-args.average_last :])
    runs = ", and as many of ".join(map(str, args.run))
    print(f"the mean of {count} checkpoints of {runs}; {float32.model.count_params():,} parameters", flush=True)

    if args.format == "ctranslate2":
        tt.ctranslate2.save(float32, path, args.quantization)
        print(f"published {path}: CTranslate2, {args.quantization or 'float32'}, {size_of(path):,} bytes")
        return

    facts = {"step": json.loads((run.checkpoints()[-1] / "state.json").read_text())["step"]}
    facts |= languages(settings, args.languages)
    if dev:
        scores = {"float32": bleu_of(tt, float32, dev)}
        if translator is not float32:
            scores[args.dtype] = bleu_of(tt, translator, dev)
        for dtype, score in scores.items():
            print(f"BLEU {score.value:.2f} in {dtype}  {score.signature}", flush=True)
        facts |= {"bleu": round(scores[args.dtype].value, 2), "bleu_signature": scores[args.dtype].signature}
    else:
        facts |= metrics_of(run.path, facts["step"], float32.model.count_params(), args.dtype)

    export = Export(translator, args.n_best, args.max_beam_size, args.max_length, **facts)
    print("writing and checking ...", flush=True)
    save_export(export, path, checked=True)
    print(f"published {path}: {args.dtype}, {size_of(path):,} bytes, of weights {size_of(path / 'variables'):,}")


def read_dev(tt, args, settings):
    """Sources and references to score with: what was given, or the embedded grammar's; `None` if there are none."""
    if args.dev:
        return tt.data.read_text_pairs(*args.dev)
    if settings["data"]["train"] == "grammar":
        return tuple(map(list, zip(*tt.grammar.corpus(seed=settings["data"]["seed"])["dev"], strict=True)))
    return None


def bleu_of(tt, translator, dev):
    return tt.bleu.bleu(translator(dev[0]), dev[1])


def metrics_of(run: Path, step: int, parameters: int, dtype: str) -> dict:
    """BLEU as the training's end measured it, if it was of these weights, and not of an ensemble that they are in."""
    file = run / "metrics.json"
    metrics = json.loads(file.read_text()) if file.is_file() else {}
    if (metrics.get("steps"), metrics.get("parameters")) != (step, parameters):
        return {}
    print(f"BLEU {metrics['test_bleu']:.2f} in float32, at the training's end; --dev SOURCE TARGET measures it here")
    if dtype != "float32":
        return {}
    return {"bleu": metrics["test_bleu"], "bleu_signature": metrics["test_bleu_signature"]}


if __name__ == "__main__":
    run_program(main)
