"""Trains a trial, scores it, and describes both as a line of JSON."""

import dataclasses
import math
import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import tf_transformer as tt
from examples.claims.pcfg import Grammar
from examples.claims.plan import BATCH_TOKENS, DECODING, TREE_BATCH_TOKENS, WARMUP, Trial
from examples.claims.variants import KINDS, Ramp
from tf_transformer.data.batches import Batches
from tf_transformer.data.corpus import Batching, Corpus
from tf_transformer.data.pairs import Texts
from tf_transformer.data.sources import MemorySource
from tf_transformer.extensions.parsing import evalb
from tf_transformer.extensions.parsing.corpus import TreebankCorpus, words_of
from tf_transformer.extensions.parsing.parser import RUN_OPTIONS
from tf_transformer.extensions.parsing.treebank import as_line, read_tree, read_trees
from tf_transformer.training.losses import average_weights
from tf_transformer.utils.files import write_json
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.terminal import TrainingInterrupted

SAMPLES = 200  # of the bootstrap over sentences, the same sentences for all trials
SEARCH = {"beam_size": 4, "length_penalty": 0.6}
EVERY_TREE = 3  # parsers are scored on every third dev tree
LONG = range(13, 31)  # words of long sentences


class Deadline(keras.callbacks.Callback):
    """Stops a training at a time of `time.monotonic`, as a signal would: the trainer saves a checkpoint first."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if time.monotonic() > self.at:
            signal.raise_signal(signal.SIGTERM)


@dataclasses.dataclass
class ClaimTrainer(tt.Trainer):
    """Trainer of any kind of model.

    Attributes:
        model: Name in `KINDS`.
        deadline: Time of `time.monotonic` to stop at.
    """

    model: str = "transformer"
    deadline: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        self.callbacks = [Deadline(self.deadline)]

    def make_model(self, steps: int) -> Any:
        compiled = super().make_model(steps)
        if self.model == "transformer":
            return compiled
        keras.utils.set_random_seed(self.recipe.seed)
        model = KINDS[self.model].model(self.config)
        model.build()
        metrics = [tt.TokenAccuracy(), tt.Perplexity(), tt.TokenCount()]
        model.skip_not_finite = compiled.skip_not_finite
        model.compile(compiled.optimizer, compiled.loss, metrics=metrics, jit_compile=compiled.jit_compile)
        return model

    def load(self, last: int = 1) -> Any:
        """Returns the model with the average of the last checkpoints."""
        model = KINDS[self.model].model(self.config)
        model.build()
        average_weights(model, self.run.weights(last))
        return model


def machine() -> str:
    """Describes the processor and the cores of this process."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name.strip()}, {cores} {'core' if cores == 1 else 'cores'}"


def measure(trial: Trial, data: Path, folder: Path, deadline: float) -> dict[str, Any]:
    """Trains a trial in a folder, or resumes it there, and returns its line.

    Raises:
        TrainingInterrupted: If the deadline, of `time.monotonic`, passed before the training ended.
    """
    if trial.model == "pcfg":
        return _line(trial, _measure_grammar(trial, data))
    corpus = _treebank(trial, data, folder) if trial.trees else _texts(trial, data)
    trainer = _trainer(trial, corpus, folder, deadline)
    history = trainer.fit().history
    last = {name: values[-1] for name, values in history.items()}
    model, config = trainer.load(), trainer.config
    tokenizer = tt.Tokenizer.load(trainer.run.path / "tokenizer.model")
    source, target, pairs = _sizes(corpus, tokenizer, last["target_tokens"])
    results: dict[str, Any] = {
        "parameters": model.count_params(),
        "flop": float(f"{3 * pairs * KINDS[trial.model].forward_flops(config, source, target):.4g}"),
        "seconds": round(last["seconds"]),
        "perplexity": round(min(last["val_perplexity"], 1e9), 3),
        "gradient_norm": round(float(np.mean(history["gradient_norm"])), 3),
    }
    if trial.trees:
        parser = tt.Parser(tt.Translator(model, tokenizer, **RUN_OPTIONS))
        return _line(trial, results | {"scores": _parse(data, parser)})
    if trial.model in ("transformer", "unscaled"):
        results["entropy"] = round(_entropy(model, tokenizer, corpus.dev), 3)
    return _line(trial, results | {"scores": _scores(trial, trainer, tokenizer, data)})


def _line(trial: Trial, results: dict[str, Any]) -> dict[str, Any]:
    return {"trial": trial.described, "version": tt.__version__, "machine": machine()} | results


def _trainer(trial: Trial, corpus: Corpus, folder: Path, deadline: float) -> ClaimTrainer:
    config = trial.configuration
    peak = trial.rate or (config.d_model * WARMUP) ** -0.5
    recipe = tt.Recipe(
        steps=trial.steps,
        batch_tokens=TREE_BATCH_TOKENS if trial.trees else BATCH_TOKENS,
        eval_every=max(1, trial.steps // trial.checkpoints),
        average_last=trial.checkpoints,
        dev_sentences=2,
        clip_norm=1.0,
        on_nan="skip",
        seed=trial.seed,
    )
    file = folder.parent / "tokenizer.model"  # one of all translators
    if not trial.trees and not file.exists():
        corpus.train_tokenizer(config.vocab_size, recipe.tokenizer).save(file)
    return ClaimTrainer(
        folder,
        config,
        corpus,
        recipe,
        schedule=Ramp(peak, trial.warmup, WARMUP),
        tokenizer=None if trial.trees else tt.Tokenizer.load(file),
        model=trial.model,
        deadline=deadline,
    )


def _pairs(data: Path, name: str) -> Texts:
    source, target = tt.data.read_text_pairs(data / f"multi30k/{name}.en", data / f"multi30k/{name}.de")
    return source, target


def _shorter(texts: Texts, words: range) -> Texts:
    """Returns the pairs with so many source words."""
    pairs = [pair for pair in zip(*texts, strict=True) if len(pair[0].split()) in words]
    return [source for source, _ in pairs], [target for _, target in pairs]


def _texts(trial: Trial, data: Path) -> Corpus:
    names = data / "multi30k/train.en", data / "multi30k/train.de"
    dev = _pairs(data, "dev")
    if not trial.words:
        return Corpus(tt.sources.TextSource(*names), dev)
    words = range(trial.words + 1)
    return Corpus(MemorySource(*_shorter(_pairs(data, "train"), words)), _shorter(dev, words))


def _treebank(trial: Trial, data: Path, folder: Path) -> Corpus:
    trees = (data / "treebank/gum.train.trees").read_text(encoding="utf-8").splitlines(keepends=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = folder.parent / f"{trial.trees}.trees"
    part.write_text("".join(trees[:: max(1, len(trees) // (trial.trees or 1))][: trial.trees]), encoding="utf-8")
    return TreebankCorpus([part], [data / "treebank/gum.dev.trees"])


def _sizes(corpus: Corpus, tokenizer: tt.Tokenizer, target_tokens: float) -> tuple[int, int, float]:
    """Returns the mean tokens of sources and targets, EOS included, and the number of pairs in `target_tokens`."""
    batches: Batches = corpus.dev_batches(Batching(tokenizer, 4_096, 1))
    ids = [batches[i] for i in range(len(batches))]
    rows, source, target = (
        sum(int(np.count_nonzero(part)) for part in parts)
        for parts in ([batch.target_in[:, 0] for batch in ids], *zip(*[batch[:2] for batch in ids], strict=True))
    )
    return round(source / rows), round(target / rows), target_tokens * rows / target


def _searches(trial: Trial) -> dict[str, tuple[int, dict[str, Any]]]:
    """Returns by name the number of checkpoints to average, and the options of the search."""
    if trial.checkpoints != DECODING.checkpoints:
        return {"test": (1, SEARCH)}
    searches = dict.fromkeys((beams, alpha if beams > 1 else 0.0) for beams in (1, 4, 8) for alpha in (0.0, 0.6, 1.0))
    return {
        f"last {last}, beams {beams}, alpha {alpha}": (last, {"beam_size": beams, "length_penalty": alpha})
        for last in (1, 5, 20)
        for beams, alpha in searches
    }


def _scores(trial: Trial, trainer: ClaimTrainer, tokenizer: tt.Tokenizer, data: Path) -> dict[str, Any]:
    """Returns scores of translations by name. Those made before the deadline are in scores.json."""
    texts = {"test": _pairs(data, "test2016")}
    if trial.words:
        both = tuple(first + second for first, second in zip(texts["test"], _pairs(data, "dev"), strict=True))
        texts = {"short": _shorter(both, range(trial.words + 1)), "long": _shorter(both, LONG)}
    file = trainer.run.path / "scores.json"
    scores = read_json(file) if file.exists() else {}
    for name, (last, search) in _searches(trial).items():
        for part, (source, references) in texts.items():
            key = part if trial.words else name
            if key in scores:
                continue
            if time.monotonic() > trainer.deadline:
                raise TrainingInterrupted("stopped before a translation", signal.SIGTERM)
            translator = tt.Translator(trainer.load(last), tokenizer, **search)
            scores[key] = scored(translator(source), references)
            write_json(file, scores)
    return scores


def scored(outputs: list[str], references: list[str]) -> dict[str, Any]:
    """Returns BLEU and chrF, and BLEU of each sample of the bootstrap."""
    metric = BLEU()
    stats = metric._extract_corpus_statistics(outputs, [references])
    bleu: Callable[[list[Any]], float] = lambda total: metric._compute_score_from_stats(total).score  # noqa: E731
    chrf = CHRF().corpus_score(outputs, [references]).score
    return {"bleu": round(bleu(np.sum(stats, axis=0).tolist()), 2), "chrf": round(chrf, 2)} | bootstrap(stats, bleu)


def bootstrap(stats: Sequence[Sequence[float]], score: Callable[[list[Any]], float]) -> dict[str, Any]:
    """Returns scores of samples of sentences with replacement. Equal numbers of sentences get equal samples."""
    rows = np.array(stats)
    samples = np.random.default_rng(12_345).integers(0, len(rows), (SAMPLES, len(rows)))
    return {"samples": [round(score(rows[sample].sum(axis=0).tolist()), 1) for sample in samples]}


def _entropy(model: Any, tokenizer: tt.Tokenizer, dev: Texts) -> float:
    """Returns the mean entropy in nats of the encoder's attention, over real tokens of 64 dev sentences."""
    corpus = Corpus(MemorySource(*dev), (dev[0][:64], dev[1][:64]))
    batches = corpus.dev_batches(Batching(tokenizer, 8_192, 1))
    total, count = 0.0, 0
    for i in range(len(batches)):
        source = ops.convert_to_tensor(batches[i].source)
        _, mask, scores = model.encode(source, return_attention_scores=True)
        mask = ops.convert_to_numpy(mask)
        for layer in scores:
            weights = ops.convert_to_numpy(layer).astype("float64")  # [B, h, S, S]
            entropies = -np.sum(weights * np.log(np.maximum(weights, 1e-30)), axis=-1).transpose(0, 2, 1)[mask]
            total, count = total + float(entropies.sum()), count + entropies.size
    return total / count


def _parse(data: Path, parser: Callable[[list[str]], list[str]]) -> dict[str, Any]:
    gold = read_trees(data / "treebank/gum.dev.trees")[::EVERY_TREE]
    results = [evalb.score(*pair) for pair in zip(gold, map(read_tree, parser(list(map(words_of, gold)))), strict=True)]
    f1: Callable[[list[Any]], float] = lambda total: evalb.Score(*total).f1  # noqa: E731
    stats = [[score.matched, score.gold, score.test] for score in results]
    return {"dev": {"f1": round(f1(np.sum(stats, axis=0).tolist()), 2)} | bootstrap(stats, f1)}


def _measure_grammar(trial: Trial, data: Path) -> dict[str, Any]:
    trees = read_trees(data / "treebank/gum.train.trees")
    began = time.monotonic()
    grammar = Grammar(trees[:: max(1, len(trees) // (trial.trees or 1))][: trial.trees])
    seconds = round(time.monotonic() - began, 1)

    def parser(texts: list[str]) -> list[str]:
        return [as_line(grammar.parse(text.split())) for text in texts]

    return {"parameters": len(grammar.log_probs), "seconds": seconds, "scores": _parse(data, parser)}
