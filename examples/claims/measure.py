"""Trains a trial, scores it, and describes both as a line of JSON."""

import dataclasses
import itertools
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from sacrebleu.metrics.bleu import BLEU

import tf_transformer as tt
from examples.claims.models import KINDS, Ramp
from examples.claims.pcfg import Grammar
from examples.claims.plan import BASE, DECODED, TREE_BATCH_TOKENS, WARMUP, Trial
from tf_transformer.data.corpus import Batching
from tf_transformer.extensions.parsing import evalb
from tf_transformer.extensions.parsing.corpus import words_of
from tf_transformer.extensions.parsing.parser import RUN_OPTIONS
from tf_transformer.extensions.parsing.treebank import as_line, read_tree, read_trees
from tf_transformer.training.losses import average_weights
from tf_transformer.utils.files import write_json, write_text
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.terminal import TrainingInterrupted

SAMPLES = 200  # of the bootstrap over sentences, the same sentences for all trials
SEARCH: dict[str, Any] = {"beam_size": 4, "length_penalty": 0.6}
ALL, LONG = range(1_000), range(13, 31)  # words of sentences


@dataclasses.dataclass
class KindTrainer(tt.Trainer):
    """Trainer of a model named `kind`."""

    kind: str = "transformer"

    def make_model(self, steps: int) -> Any:
        compiled, model = super().make_model(steps), self.new_model()
        model.skip_not_finite = self.recipe.on_nan == "skip"
        metrics = [tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()]
        model.compile(compiled.optimizer, compiled.loss, metrics=metrics, jit_compile=compiled.jit_compile)
        return model

    def new_model(self) -> Any:
        keras.utils.set_random_seed(self.recipe.seed)
        model = KINDS[self.kind].model(self.config)
        model.build()
        return model

    def averaged(self, last: int) -> Any:
        """Returns the model with the average of its last checkpoints."""
        model = self.new_model()
        average_weights(model, self.run.weights(last))
        return model


def measure(trial: Trial, data: Path, folder: Path, deadline: float = math.inf) -> dict[str, Any]:
    """Trains a trial in a folder, or resumes it there, and returns its line. At the deadline it raises."""
    line: dict[str, Any] = {"trial": trial.described, "version": tt.__version__, "machine": machine()}
    if trial.model == "pcfg":
        return line | _grammar(trial, data)
    trainer = trainer_of(trial, data, folder)

    def stop_in_time(batch: int, logs: object) -> None:
        if time.monotonic() > deadline:
            signal.raise_signal(signal.SIGTERM)  # so that the trainer saves a checkpoint

    trainer.callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=stop_in_time)]
    columns = trainer.fit().history
    last = {name: values[-1] for name, values in columns.items()}
    tokenizer, model = tt.Tokenizer.load(trainer.run.path / "tokenizer.model"), trainer.averaged(1)
    batching = Batching(tokenizer, trial.batch_tokens, trial.seed)
    text = trainer.corpus.batches(batching).summary()
    source, target = text.source_tokens / text.pairs, text.target_tokens / text.pairs
    flops = KINDS[trial.model].forward_flops(trainer.config, round(source), round(target))
    line |= {
        "parameters": model.count_params(),
        "flop": float(f"{3 * flops * last['target_tokens'] / target:.4g}"),
        "seconds": round(last["seconds"]),
        "perplexity": round(min(1e9, last["val_perplexity"]), 3),
    }
    if any(norms := columns.get("gradient_norm", ())):  # of the checkpoints on TensorFlow
        line["gradient_norm"] = round(float(np.nanmean(np.array(norms, dtype=float))), 3)
    if trial.trees:
        options: dict[str, Any] = RUN_OPTIONS
        return line | {"scores": _parse(data, tt.Parser(tt.Translator(model, tokenizer, **options)))}
    if trial.model in ("transformer", "unscaled"):
        line["entropy"] = round(entropy(model, trainer.corpus.dev_batches(batching)[0].source), 3)
    return line | {"scores": _translate(trial, trainer, data, deadline)}


def machine() -> str:
    """Describes the processor and the number of cores of this process, or under JAX its device."""
    if keras.backend.backend() == "jax":
        import jax

        return f"{jax.devices()[0].device_kind}, JAX {jax.__version__}"
    lines = Path("/proc/cpuinfo").read_text().splitlines() if os.path.exists("/proc/cpuinfo") else []
    names = [line.partition(": ")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown'}, cores: {len(os.sched_getaffinity(0))}"


def trainer_of(trial: Trial, data: Path, folder: Path) -> KindTrainer:
    config, corpus = trial.configuration, _corpus(trial, data, folder)
    recipe = tt.Recipe(
        steps=trial.steps,
        batch_tokens=TREE_BATCH_TOKENS if trial.trees else trial.batch_tokens,
        eval_every=max(1, trial.steps // trial.checkpoints),
        average_last=trial.checkpoints,
        dev_sentences=2,
        clip_norm=1.0,
        on_nan="skip" if trial.model == "unscaled" else "stop",
        seed=trial.seed,
    )
    file = folder.parent / f"{trial.corpus}.model"  # one of all translators
    if not trial.trees and not file.exists():
        _corpus(Trial(corpus=trial.corpus), data, folder).train_tokenizer(config.vocab_size, recipe.tokenizer).save(
            file
        )
    tokenizer = None if trial.trees else tt.Tokenizer.load(file)
    schedule = Ramp(trial.rate or (config.d_model * WARMUP) ** -0.5, trial.warmup, WARMUP)
    return KindTrainer(folder, config, corpus, recipe, schedule=schedule, tokenizer=tokenizer, kind=trial.model)


def _pairs(trial: Trial, data: Path, name: str, words: range) -> tuple[list[str], list[str]]:
    """Returns the pairs of a text with so many source words."""
    files = [data / f"{trial.corpus}/{name}.{language}" for language in ("en", "de")]
    both = zip(*tt.data.read_text_pairs(files[0], files[1]), strict=True)
    pairs = [pair for pair in both if len(pair[0].split()) in words]
    return [source for source, _ in pairs], [target for _, target in pairs]


def _corpus(trial: Trial, data: Path, folder: Path) -> tt.Corpus:
    if not trial.trees:
        words = range(trial.words + 1) if trial.words else ALL
        return tt.Corpus(
            tt.sources.MemorySource(*_pairs(trial, data, "train", words)), _pairs(trial, data, "dev", words)
        )
    part = folder.with_suffix(".trees")
    part.parent.mkdir(parents=True, exist_ok=True)
    write_text(part, "".join(f"{line}\n" for line in _trees(trial, data)))
    return tt.TreebankCorpus([part], [data / "treebank/gum.dev.trees"])


def _trees(trial: Trial, data: Path) -> list[str]:
    """Returns evenly spaced training trees."""
    lines = (data / "treebank/gum.train.trees").read_text(encoding="utf-8").splitlines()
    return lines[:: max(1, len(lines) // (trial.trees or 1))][: trial.trees]


def _translate(trial: Trial, trainer: KindTrainer, data: Path, deadline: float) -> dict[str, Any]:
    """Returns scores by name of test set or search. Those made before the deadline are in scores.json."""
    parts = {"short": range(trial.words + 1), "long": LONG} if trial.words else {"test": ALL}
    text = "test2016" if trial.corpus == BASE.corpus else "dev"  # the other corpus has no test set
    tests: dict[str, Any] = {name: (1, SEARCH, _pairs(trial, data, text, words)) for name, words in parts.items()}
    if trial.checkpoints == DECODED:
        searches = [(1, 0.0), *((K, alpha) for K in (4, 8) for alpha in (0.0, 0.6, 1.0))]
        test, tests = tests["test"][2], {}
        for last, (K, alpha) in itertools.product((1, 5, DECODED), searches):
            search = {"beam_size": K, "length_penalty": alpha}
            tests[f"last {last}, beams {K}, alpha {alpha}"] = last, search, test
    file, tokenizer = (
        trainer.run.path / f"scores-{trial.steps}.json",
        tt.Tokenizer.load(trainer.run.path / "tokenizer.model"),
    )
    scores = read_json(file) if file.exists() else {}
    for name, (last, search, (sources, references)) in tests.items():
        if name not in scores:
            if time.monotonic() > deadline:
                raise TrainingInterrupted("stopped before a translation", signal.SIGTERM)
            translator = tt.Translator(trainer.averaged(last), tokenizer, **search)
            scores[name] = scored(translator(sources), references)
            write_json(file, scores)
    return scores


def scored(outputs: list[str], references: list[str]) -> dict[str, Any]:
    """Returns BLEU and chrF, and BLEU of each sample of the bootstrap."""
    metric = BLEU()
    stats = metric._extract_corpus_statistics(outputs, [references])
    scores = bootstrap("bleu", stats, lambda sums: metric._compute_score_from_stats(sums).score)
    return scores | {"chrf": round(tt.bleu.chrf(outputs, references).value, 2)}


def bootstrap(name: str, stats: Sequence[Sequence[float]], score: Callable[[list[Any]], float]) -> dict[str, Any]:
    """Returns a score of all sentences, and of samples of them with replacement, the same in each call."""
    rows = np.array(stats)
    samples = np.random.default_rng(1).integers(0, len(rows), (SAMPLES, len(rows)))
    value, *values = (round(score(part.sum(axis=0).tolist()), 2) for part in (rows, *(rows[i] for i in samples)))
    return {name: value, "samples": values}


def entropy(model: tt.Transformer, source: np.ndarray) -> float:
    """Returns the mean entropy in nats of the weights of the encoder's attention, over the tokens of a batch."""
    _, mask, scores = model.encode(source, return_attention_scores=True)
    weights = np.stack(list(map(keras.ops.convert_to_numpy, scores)), axis=1)  # [B, N, h, S, S]
    entropies = -np.sum(weights * np.log(np.maximum(weights, 1e-30)), axis=-1)
    return float(np.moveaxis(entropies, -1, 1)[keras.ops.convert_to_numpy(mask)].mean())


def _parse(data: Path, parser: Callable[[list[str]], list[str]]) -> dict[str, Any]:
    """Returns F1 of every third dev tree."""
    gold = read_trees(data / "treebank/gum.dev.trees")[::3]
    scores = map(evalb.score, gold, map(read_tree, parser(list(map(words_of, gold)))))
    stats = [[score.matched, score.gold, score.test] for score in scores]
    return {"dev": bootstrap("f1", stats, lambda sums: evalb.Score(*sums).f1)}


def _grammar(trial: Trial, data: Path) -> dict[str, Any]:
    began = time.monotonic()
    grammar = Grammar(map(read_tree, _trees(trial, data)))
    results = {"parameters": len(grammar.log_probs), "seconds": round(time.monotonic() - began)}
    return results | {"scores": _parse(data, lambda texts: [as_line(grammar.parse(text.split())) for text in texts])}
