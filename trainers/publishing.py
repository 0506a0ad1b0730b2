"""The training programs' work before and after training: plans, averages, scores, SavedModels."""

import dataclasses
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np

import tf_transformer as tt
from tf_transformer import PRESETS, RECIPES, BadInput, Recipe, ToyCorpus, Trainer, TransformerConfig, Translator
from tf_transformer.data.corpus import TOY
from tf_transformer.data.sources import Texts
from tf_transformer.decoding.search_options import LANGUAGES, MOST_BEAMS, options_of, request_options
from tf_transformer.inference.translator import trained
from tf_transformer.serving import formats
from tf_transformer.tokenizers.tokenizer import FIRST_ID
from tf_transformer.training.recipe import PAPER_STEPS, recipe_of
from tf_transformer.training.run import Run
from tf_transformer.training.tasks import task_of
from tf_transformer.utils.files import encoded, one_line, write_json
from tf_transformer.utils.lines import lines_in
from tf_transformer.utils.reading import check_kinds, read_json, reading
from tf_transformer.utils.terminal import duration

from . import costs
from .command import CONFIG_OPTIONS, HERE, chosen

if TYPE_CHECKING:
    from tf_transformer.serving.contract import Root

DEV, TEST = "the dev set", "the test set"  # names of the data that a score was measured on
MEASURED_TOKENS = 2_048  # per batch, at most: a step of `base` takes three seconds on two cores


def plan_of(options: dict[str, Any], kind: Literal["translation", "parsing"]) -> tuple[TransformerConfig, Recipe]:
    """Returns configuration and recipe of a preset, or of a translator to start from, changed by the options."""
    start = options.get("start")
    if start:
        config, recipe = start.model.config, RECIPES["finetune"]
    elif kind == "parsing":
        from tf_transformer.extensions.parsing.presets import plan_of as plan_of_parser

        config, recipe = plan_of_parser(options["preset"])
    else:
        recipe = recipe_of(options["preset"])
        config = PRESETS[options["preset"]]
    recipe = changed(recipe, options)
    return dataclasses.replace(config, **chosen(options, CONFIG_OPTIONS)), recipe


def changed(recipe: Recipe, options: dict[str, Any]) -> Recipe:
    """Returns a recipe changed by the options. Steps replace its epochs, epochs its steps, and a rate its factor."""
    changes = chosen(options, [field.name for field in dataclasses.fields(Recipe)])
    if changes.keys() & {"steps", "epochs"}:
        changes = {"steps": None, "epochs": None} | changes
    if changes.get("learning_rate"):  # instead of the preset's factor of equation (3)
        changes = {"learning_rate_factor": Recipe.learning_rate_factor} | changes
    return dataclasses.replace(recipe, **changes)


def export_folder(options: dict[str, Any], run: Path, strategy: Any) -> Path:
    """Returns the directory of the SavedModel's versions, by --base and --name, if a new one can be written to it."""
    root: Path = (options["base"] or Path("savedmodels")) / (options["name"] or run.absolute().resolve().name)
    if keras.backend.backend() == "tensorflow" and tt.distribution.is_chief(strategy):
        formats.next_version(root)
    return root


def show_plan(config: TransformerConfig, recipe: Recipe, devices: str) -> None:
    """Prints an estimate of the cost (--dry-run), measured on this machine or for other devices."""
    if recipe.epochs:
        raise BadInput("--dry-run: expected --steps, got --epochs, which depend on the text")
    steps = recipe.steps or PAPER_STEPS
    training = costs.Training(steps, recipe.batch_tokens, bool(recipe.mixed_precision), recipe.num_microbatches)
    sizes = (f"{name}={value}" for name, value in config.to_dict().items() if value is not None)
    print(f"model: {', '.join(sizes)}")
    every, last = recipe.interval(steps), recipe.averaged
    print(f"checkpoints: one every {every:,} steps. The {recipe.average} {last} are averaged.")
    print(costs.plan(config, training, None if devices == HERE else devices), flush=True)
    if devices != HERE:
        return
    with tempfile.TemporaryDirectory() as folder:
        model = Trainer(Path(folder) / "run", config, ToyCorpus(), recipe).make_model(steps=4)
    rows = -(-min(recipe.batch_tokens, MEASURED_TOKENS) // costs.LENGTH)
    ids = np.random.default_rng(0).integers(FIRST_ID, config.vocab_size, (3 * rows, costs.LENGTH), "int32")
    model.fit((ids[:rows], ids[:rows]), ids[:rows], batch_size=rows, verbose=0, shuffle=False)  # compiles
    began = time.monotonic()
    model.fit((ids, ids), ids, batch_size=rows, verbose=0, shuffle=False)
    rate = float(ids.size / (time.monotonic() - began))
    device = keras.distribution.list_devices()[0] if keras.backend.backend() == "jax" else "this machine"
    print(f"{device}: {rate:,.0f} target tokens/s, {duration(steps * recipe.batch_tokens / rate)} for all steps")


def is_complete(trainer: Trainer) -> bool:
    """Returns whether the run was complete and scored before the last `fit`. If so, prints its scores."""
    metrics = trainer.run.path / "metrics.json"
    if trainer.began < trainer.steps or not metrics.exists():
        return False
    print(f"this run is complete; {metrics}:\n{json.dumps(read_json(metrics), indent=2)}")
    print(f"Pass more --steps to train on, or another --run to start again (this one is at step {trainer.began:,}).")
    return True


def averaged(trainer: Trainer, search: dict[str, Any], others: Iterable[Path] = ()) -> Any:
    """Returns the average of a run's last or best checkpoints, or an ensemble of several runs' averages."""
    count, paths = len(trainer.run.averaged(trainer.recipe.averaged)), [trainer.run.path, *others]
    of_each = f" of each of {len(paths)} models, an ensemble" if len(paths) > 1 else ""
    checkpoints = "checkpoint" if count == 1 else f"{count} checkpoints"
    print(f"averaging the {trainer.recipe.average} {checkpoints}{of_each}", flush=True)
    return trained(paths, average_last=trainer.recipe.averaged, **search)


def score_and_publish(trainer: Trainer, translator: Translator, root: Path | None) -> Path | None:
    """Prints a translator's scores on the test set, and publishes it with them. Returns the version's directory.

    Without a root, it only writes the run's metrics.json.
    """
    scores, corpus = trainer.evaluate(translator=translator), trainer.corpus
    text = TEST if corpus.test != corpus.dev else DEV
    for name, score in scores.items():
        print(f"{name} {score.value:.2f}  {score.signature}, of {text}")
    bleu = metadata_of("BLEU", scores["BLEU"], text)
    metrics = {f"test_{fact}": value for fact, value in bleu.items()} | {"test_chrf": round(scores["chrF"].value, 2)}
    # Those of several test sets, such as "BLEU en-de".
    named = {name: score for name, score in scores.items() if " " in name}
    metrics |= {f"test_{name.lower().replace(' ', '_')}": round(score.value, 2) for name, score in named.items()}
    if root is None:
        record(trainer.run, metrics, costs.parameters(trainer.config))
        return None
    metadata = bleu | language_facts(translator, corpus.languages)
    export = translator.export(max_beam_size=max(16, translator.beam_size), **metadata)
    return publish(trainer.run, export, root, metrics, (corpus.test or corpus.dev)[0][:3])


def language_facts(translator: Translator, languages: Sequence[str] | None) -> dict[str, str]:
    """Returns a corpus's languages, if known, for `model_info`."""
    # The corpus may have other codes for the languages of a multilingual model.
    codes = () if translator.tokenizer.languages else languages or ()
    return dict(zip(LANGUAGES, codes, strict=False))


def publish(run: Run, export: "Root", root: Path, metrics: dict[str, Any], examples: list[str]) -> Path:
    """Writes and checks the SavedModel, writes metrics.json, and prints what the SavedModel makes of the examples."""
    from tf_transformer.serving import saving

    print("writing the SavedModel ...", flush=True)
    export.describe(step=read_json(run.checkpoints()[-1] / "state.json")["step"])
    saved = formats.publish(lambda path: saving.save_export(export, path, checked=True), root)
    record(run, metrics, export.metadata["parameters"])
    print(f"saved {saved}. A fresh process loads it and translates:", flush=True)
    # Not in this process, whose Keras model could hide what is missing from the SavedModel.
    command = [sys.executable, "-m", f"{__package__}.translate", str(saved)]
    lines = b"".join(encoded(one_line(text)) + b"\n" for text in examples)
    process = subprocess.run(command, input=lines, capture_output=True)
    if process.returncode:
        sys.exit(f"the SavedModel failed:\n{process.stderr.decode('utf-8', 'replace')}")
    for source, line in zip(examples, lines_in(io.BytesIO(process.stdout)), strict=True):
        print(f"  {source}\n    -> {line.decode()}")
    return saved


def say_done(began: float, run: Path, root: Path, commands: str | None) -> None:
    """Prints the time since `began`, and the next commands: by default, those of an export with another backend."""
    export = f"  tf-transformer export --run {run} --name {root.name}"
    title = "Next" if commands else "An export takes the TensorFlow backend. There, run"
    print(f"done in {(time.perf_counter() - began) / 60:.1f} minutes. {title}:\n{commands or export}")


def say_dtypes(path: Path, size: int, parameters: int) -> None:
    """Prints the share of 8-bit weights in an export whose weights take `size` bytes, and the sizes in other dtypes."""
    from tf_transformer.layers.int8 import share_in_8_bits

    half = 2 * parameters
    share = f"{100 * share_in_8_bits(path):.0f} % of the weights have 8 bits"
    print(f"{share}; in float32 the weights take {2 * half:,} bytes, in bfloat16 {half:,}", flush=True)
    if size > half:
        reason = "int8 is larger than bfloat16 here, since small matrices stay in float32"
        warnings.warn(f"{reason}; take --dtype bfloat16", stacklevel=2)


def record(run: Run, metrics: dict[str, Any], parameters: Any) -> None:
    """Writes metrics.json: measured scores, and the cost of the training."""
    state = read_json(run.checkpoints()[-1] / "state.json")
    metadata = {"steps": state["step"], "target_tokens": state["target_tokens"], "seconds": round(state["seconds"], 1)}
    write_json(run.path / "metrics.json", metrics | metadata | {"parameters": parameters})


def search_of(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the search options, checked against their ranges."""
    search = chosen(options, [*options_of("translator")])
    return request_options(search, {"beam_size": MOST_BEAMS})


def read_dev(settings: dict[str, Any], files: list[str] | None) -> Texts | None:
    """Returns the dev set: the files', or the toy corpus's, or `None` if the run's is unknown."""
    if files:
        return task_of(settings["kind"]).read(files)
    return ToyCorpus().dev if settings["corpus"].get("train") == TOY else None


def scores_of(kind: str, dev: Texts, learned: dict[str, Any], name: str) -> dict[str, Any]:
    """Prints the scores of models by dtype on the dev set. Returns the last one's score, as metadata of an export."""
    metric, metadata = task_of(kind).metric.name, dict[str, Any]()
    for dtype, translator in learned.items():
        score = task_of(kind).scores(translator(dev[0]), dev[1])[metric]
        print(f"{metric} {score.value:.2f} in {dtype}  {score.signature}, of {name}", flush=True)
        metadata = metadata_of(metric, score, name)
    return metadata


def metadata_of(metric: str, score: Any, text: str) -> dict[str, Any]:
    """Returns a score as metadata for an export and metrics.json, with the name of the text it was measured on."""
    name = metric.lower()
    return {name: round(score.value, 2), f"{name}_signature": score.signature, f"{name}_text": text}


def measured(run: Run, step: int, parameters: int) -> dict[str, Any]:
    """Returns the score from the end of training, if it belongs to these weights and not to an ensemble."""
    file, metric = run.path / "metrics.json", task_of(run.settings()["kind"]).metric.name
    metrics = read_json(file) if file.is_file() else {}
    name = f"test_{metric.lower()}"
    if (metrics.get("steps"), metrics.get("parameters")) != (step, parameters) or name not in metrics:
        return {}
    kinds = {name: float, f"{name}_signature": str, f"{name}_text": str}
    with reading(file, "the scores of a run"):
        metrics = check_kinds(metrics, kinds)
    value, _, text = map(metrics.get, kinds)  # older runs have no text
    of_text = f", of {text}," if text else ""
    print(f"{metric} {value:.2f} in float32{of_text} at the end of training; --dev measures it here")
    return {name.removeprefix("test_"): metrics[name] for name in kinds if name in metrics}
