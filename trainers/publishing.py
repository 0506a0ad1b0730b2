"""The work of the training programs before and after training: plans, averages, SavedModels."""

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

from tf_transformer import PRESETS, BadInput, TransformerConfig
from tf_transformer.data.corpus import ToyCorpus
from tf_transformer.data.pairs import Texts
from tf_transformer.decoding.search_options import MOST_BEAMS, SEARCH_OPTIONS, of_request
from tf_transformer.evaluation import costs
from tf_transformer.inference.loading import trained
from tf_transformer.inference.translator import Translator
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.tokenizers.tokenizer import FIRST_ID
from tf_transformer.training.recipe import PAPER_STEPS, RECIPES, Recipe, recipe_of
from tf_transformer.training.run import Run
from tf_transformer.training.tasks import task_of
from tf_transformer.training.trainer import Trainer
from tf_transformer.utils.files import encoded, lines_in, one_line, write_json
from tf_transformer.utils.reading import check_kinds, read_json, reading
from tf_transformer.utils.terminal import duration

from .command import CONFIG_OPTIONS, HERE, chosen

if TYPE_CHECKING:
    from tf_transformer.serving.contract import Root

DEV, TEST = "the dev set", "the test set"  # what a score was measured on
MEASURED_TOKENS = 2_048  # of a batch, at most: a step of `base` takes three seconds on two cores


def plan_of(given: dict[str, Any], kind: Literal["translation", "parsing"]) -> tuple[TransformerConfig, Recipe]:
    """The configuration and the recipe of a preset, or of a translator to start from, with the changes in `given`."""
    start = given.get("start")
    recipe = changed(RECIPES["finetune"] if start else recipe_of(given["preset"], kind), given)
    config = start.model.config if start else PRESETS[given["preset"]]
    config = dataclasses.replace(config, **chosen(given, CONFIG_OPTIONS))
    return config, recipe


def changed(recipe: Recipe, given: dict[str, Any]) -> Recipe:
    """A recipe with the changes in `given`; steps replace its epochs, and epochs its steps."""
    changes = chosen(given, [field.name for field in dataclasses.fields(Recipe)])
    if changes.keys() & {"steps", "epochs"}:
        changes = {"steps": None, "epochs": None} | changes
    return dataclasses.replace(recipe, **changes)


def show_plan(config: TransformerConfig, recipe: Recipe, devices: str) -> None:
    """Print an estimate of the cost (--dry-run): on this machine, from some steps, or on other devices.

    Args:
        config: of the model.
        recipe: of the training.
        devices: "here", or as for `costs.plan`.

    Raises:
        BadInput: the recipe counts epochs, or the devices cannot be read.
    """
    if recipe.epochs:
        raise BadInput("--dry-run: expected --steps, got --epochs, which depend on the text")
    steps = recipe.steps or PAPER_STEPS
    training = costs.Training(steps, recipe.batch_tokens, bool(recipe.mixed_precision), recipe.parts)
    sizes = (f"{name}={value}" for name, value in config.to_dict().items() if value is not None)
    print(f"model: {', '.join(sizes)}")
    every, last = recipe.interval(steps), recipe.averaged
    print(f"checkpoints: one every {every:,} steps; the last {last} are kept, and averaged")
    print(costs.plan(config, training, None if devices == HERE else devices), flush=True)
    if devices == HERE:
        rate = _tokens_a_second(config, recipe)
        device = keras.distribution.list_devices()[0] if keras.backend.backend() == "jax" else "this machine"
        print(f"{device}: {rate:,.0f} target tokens a second; {duration(steps * recipe.batch_tokens / rate)} of steps")


def _tokens_a_second(config: TransformerConfig, recipe: Recipe) -> float:
    """The rate of training here, from three steps after one that compiles, with smaller batches where the recipe's
    would take long."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(Path(folder) / "run", config, ToyCorpus(), recipe)
        model = trainer.make_model(steps=4)
    rows, steps = -(-min(recipe.batch_tokens, MEASURED_TOKENS) // costs.LENGTH), 3
    ids = np.random.default_rng(0).integers(FIRST_ID, config.vocab_size, (steps * rows, costs.LENGTH), "int32")
    began = 0.0
    for count in (1, steps):
        began, part = time.monotonic(), ids[: count * rows]
        model.fit((part, part), part, batch_size=rows, verbose=0, shuffle=False)
    return float(ids.size / (time.monotonic() - began))


def is_complete(trainer: Trainer) -> bool:
    """Whether the run was complete, and scored, before the last `fit`; if so, print its scores."""
    metrics = trainer.run.path / "metrics.json"
    if trainer.began < trainer.steps or not metrics.exists():
        return False
    print(f"this run is complete; {metrics}:\n{json.dumps(read_json(metrics), indent=2)}")
    print(f"Give more --steps to train on, or another --run to start anew (this one did {trainer.began:,}).")
    return True


def averaged(trainer: Trainer, search: dict[str, Any], others: Iterable[Path] = ()) -> Any:
    """The average of a run's last checkpoints, or an ensemble of several runs' averages."""
    count, paths = len(trainer.run.checkpoints()[-trainer.recipe.averaged :]), [trainer.run.path, *others]
    of_each = f" of each of {len(paths)} models, an ensemble" if len(paths) > 1 else ""
    last = "the last checkpoint" if count == 1 else f"the last {count} checkpoints"
    print(f"averaging {last}{of_each}", flush=True)
    return trained(paths, average_last=trainer.recipe.averaged, **search)


def score_and_publish(trainer: Trainer, translator: Translator, root: Path | None) -> Path | None:
    """Print a translator's scores on the test text, publish it with them, and return the version's folder; without a
    root, write the scores into the run alone."""
    scores, corpus = trainer.evaluate(translator=translator), trainer.corpus
    text = TEST if corpus.test != corpus.dev else DEV
    for name, score in scores.items():
        print(f"{name} {score.value:.2f}  {score.signature}, of {text}")
    bleu = facts_of("BLEU", scores["BLEU"], text)
    metrics = {f"test_{fact}": value for fact, value in bleu.items()} | {"test_chrf": round(scores["chrF"].value, 2)}
    if root is None:
        record(trainer.run, metrics, costs.parameters(trainer.config))
        return None
    facts = bleu | language_facts(translator, corpus.languages)
    export = translator.export(max_beam_size=max(16, translator.beam_size), **facts)
    return publish(trainer.run, export, root, metrics, (corpus.test or corpus.dev)[0][:3])


def language_facts(translator: Translator, languages: Sequence[str] | None) -> dict[str, str]:
    """A corpus's languages, if it says which, for `model_info`. A model of several languages has learned its own, which
    a corpus may name otherwise."""
    known = () if translator.tokenizer.languages else languages or ()
    return dict(zip(LANGUAGES, known, strict=False))


def publish(run: Run, export: "Root", root: Path, metrics: dict[str, Any], examples: list[str]) -> Path:
    """Write the SavedModel and check it, write metrics.json, and show the SavedModel's answers.

    Args:
        run: the trained run.
        export: the export to write.
        root: the folder of the SavedModel's versions.
        metrics: measured scores.
        examples: texts that a fresh process gives to the SavedModel.

    Returns:
        the folder of the version.
    """
    from tf_transformer.serving import savedmodel, versions

    print("writing the SavedModel ...", flush=True)
    export.describe(step=read_json(run.checkpoints()[-1] / "state.json")["step"])
    saved = versions.publish(lambda path: savedmodel.save_export(export, path, checked=True), root)
    record(run, metrics, export.facts["parameters"])
    print(f"saved {saved}; a fresh process loads it and answers:", flush=True)
    for source, output in zip(examples, answers(saved, examples), strict=True):
        print(f"  {source}\n    -> {output}")
    return saved


def say_dtypes(path: Path, size: int, parameters: int) -> None:
    """Print how much of an export's weights, which take `size` bytes, has 8 bits, and what other dtypes would take."""
    from tf_transformer.serving.savedmodel import share_in_8_bits

    half = 2 * parameters
    share = f"{100 * share_in_8_bits(path):.0f} % of the weights have 8 bits"
    print(f"{share}; in float32 the weights take {2 * half:,} bytes, in bfloat16 {half:,}", flush=True)
    if size > half:
        why = "int8 is larger than bfloat16 here, since small matrices stay in float32"
        warnings.warn(f"{why}; take --dtype bfloat16", stacklevel=2)


def record(run: Run, metrics: dict[str, Any], parameters: Any) -> None:
    """Write metrics.json: measured scores, and what the training took."""
    state = read_json(run.checkpoints()[-1] / "state.json")
    facts = {"steps": state["step"], "target_tokens": state["target_tokens"], "seconds": round(state["seconds"], 1)}
    write_json(run.path / "metrics.json", metrics | facts | {"parameters": parameters})


def answers(saved: Path, texts: list[str]) -> list[str]:
    """A SavedModel's answers to texts, in a fresh process."""
    command = [sys.executable, "-m", f"{__package__}.translate", str(saved)]
    lines = b"".join(encoded(one_line(text)) + b"\n" for text in texts)
    process = subprocess.run(command, input=lines, capture_output=True)
    if process.returncode:
        sys.exit(f"the SavedModel did not answer:\n{process.stderr.decode('utf-8', 'replace')}")
    return [line.decode() for line in lines_in(io.BytesIO(process.stdout))]


def search_of(given: dict[str, Any]) -> dict[str, Any]:
    """The given options of a search, checked against their ranges."""
    search = chosen(given, [name for name, option in SEARCH_OPTIONS.items() if option.translator])
    return of_request(search, {"beam_size": MOST_BEAMS})


def read_dev(settings: dict[str, Any], files: list[str] | None) -> Texts | None:
    """The dev text of a run: the given files, or the toy corpus's; `None` if there is neither."""
    if files:
        return task_of(settings["kind"]).read(files)
    if settings["corpus"].get("train") == "grammar":
        return ToyCorpus().dev
    return None


def scores_of(kind: str, dev: Texts, learned: dict[str, Any], name: str) -> dict[str, Any]:
    """Score a model in each dtype, and print the scores.

    Args:
        kind: what is learned, "translation" or "parsing".
        dev: sources and references.
        learned: a model by each dtype.
        name: of the text, for the facts.

    Returns:
        the last dtype's score, as facts of an export.
    """
    metric, facts = task_of(kind).metric, dict[str, Any]()
    for dtype, translator in learned.items():
        score = task_of(kind).scores(translator(dev[0]), dev[1])[metric]
        print(f"{metric} {score.value:.2f} in {dtype}  {score.signature}, of {name}", flush=True)
        facts = facts_of(metric, score, name)
    return facts


def facts_of(metric: str, score: Any, text: str) -> dict[str, Any]:
    """Returns a score as facts for an export and metrics.json, with the name of the text it was measured on."""
    name = metric.lower()
    return {name: round(score.value, 2), f"{name}_signature": score.signature, f"{name}_text": text}


def measured(run: Run, step: int, parameters: int) -> dict[str, Any]:
    """The score measured at the end of training, if it belongs to these weights and not to an ensemble."""
    file, metric = run.path / "metrics.json", task_of(run.settings()["kind"]).metric
    metrics = read_json(file) if file.is_file() else {}
    names = (metric.lower(), f"{metric.lower()}_signature", f"{metric.lower()}_text")
    known = metrics.get("steps"), metrics.get("parameters"), f"test_{names[0]}" in metrics
    if known != (step, parameters, True):
        return {}
    with reading(file, "the scores of a run"):
        kinds = dict(zip((f"test_{name}" for name in names), (float, str, str), strict=True))
        metrics = check_kinds(metrics, kinds)
    value, _, text = map(metrics.get, kinds)  # an earlier version's have no text
    of_text = f", of {text}," if text else ""
    print(f"{metric} {value:.2f} in float32{of_text} at the end of training; --dev measures it here")
    return {name: metrics[f"test_{name}"] for name in names if f"test_{name}" in metrics}
