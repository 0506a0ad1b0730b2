"""The experiments on the paper's claims: baselines, plan, driver and page."""

import dataclasses
import json
import math

import keras
import numpy as np
import pytest
from conftest import array, close, normal

import tf_transformer as tt
from examples.claims import measure, models, page, pcfg, plan, run
from examples.claims.plan import Trial
from tf_transformer.extensions.parsing.treebank import as_line, read_tree
from tf_transformer.utils.terminal import TrainingInterrupted

CONFIG = tt.TransformerConfig(2, 6, 10, 1, dropout=0.0, positions="learned", max_length=29, vocab_size=13)
SOURCE, TARGET = np.array([[5, 7, 3, 11, 2], [6, 4, 2, 0, 0]]), np.array([[1, 8, 9, 4], [1, 12, 0, 0]])


@pytest.fixture(params=["lstm", "conv"])
def model(request):
    model = models.KINDS[request.param].model(CONFIG)
    model.build()
    for i, weight in enumerate(model.weights):  # no zeros
        weight.assign(weight + 0.1 * normal(*weight.shape, seed=i))
    return model


def test_gradients_are_those_of_finite_differences(model):
    """In random directions of all weights, which takes fewer passes than weight by weight."""
    import tensorflow as tf

    factors, weights = normal(2, 4, 13), model.trainable_weights
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model((SOURCE, TARGET)) * factors)
    gradients = [array(tf.convert_to_tensor(gradient)) for gradient in tape.gradient(loss, weights)]
    values, size = [array(weight) for weight in weights], 1e-3
    for seed in range(2):
        steps = [size * normal(*weight.shape, seed=seed + 7) for weight in weights]
        losses = []
        for sign in (1, -1):
            for weight, value, step in zip(weights, values, steps, strict=True):
                weight.assign(value + sign * step)
            losses.append(np.sum(array(model((SOURCE, TARGET))).astype("float64") * factors))
        expected = sum(np.sum(gradient * step) for gradient, step in zip(gradients, steps, strict=True))
        assert (losses[0] - losses[1]) / 2 == pytest.approx(expected, rel=0.01, abs=0.01 * size)


def test_outputs_see_neither_later_tokens_nor_padding(model):
    expected = array(model((SOURCE, TARGET)))
    changed = TARGET.copy()
    changed[:, 2:] = 10
    close(array(model((SOURCE, changed)))[:, :2], expected[:, :2])
    assert np.abs(array(model((SOURCE, changed)))[:, 2:] - expected[:, 2:]).max() > 0.01
    close(array(model((SOURCE[1:, :3], TARGET[1:, :2])))[0], expected[1, :2], 1e-4, 1e-5)


@pytest.mark.program
def test_a_search_scores_as_the_model(model):
    """Each hypothesis's log-probability is that of its tokens, so each beam sees its own prefix."""
    tokenizer = tt.Tokenizer.train_from_iterator(["ab ba", "a b"], 269)
    model = type(model)(dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size))
    model.build()
    translator = tt.Translator(model, tokenizer, length_penalty=0.0)
    source = keras.ops.convert_to_tensor(SOURCE.astype("int32"))
    outputs = translator.search(source, np.array([4, 2], "int32"), n_best=3, beam_size=3, max_length=5)
    for row in range(2):
        for beam in range(3):
            ids = array(outputs.ids)[row, beam, : array(outputs.lengths)[row, beam]]
            inputs = np.concatenate([[1], ids[:-1]])[None]
            log_probs = keras.ops.log_softmax(model((SOURCE[row : row + 1], inputs)))
            assert array(log_probs)[0, np.arange(len(ids)), ids].sum() == pytest.approx(
                array(outputs.log_probs)[row, beam], abs=1e-4
            )


def test_operations_are_counted():
    """Two for each product of a matmul. The matmuls are listed by their three sizes."""
    S, T, d, V = 5, 7, 6, 13
    half = d // 2
    encoder = [(S, d, 4 * half), (S, half, 4 * half)] * 2 * 2  # input and state, two directions, two layers
    decoder = [(T, d, 4 * d), (T, d, 4 * d), (T, 2 * d, 4 * d), (T, d, 4 * d)]
    others = [(1, d, d), (T, d, d), (T, d, S), (T, S, d), (T, 2 * d, d), (T, d, V)]
    expected = sum(2 * math.prod(sizes) for sizes in encoder + decoder + others)
    assert models.KINDS["lstm"].forward_flops(CONFIG, S, T) == expected
    layer = [(S, 3 * d, 2 * d), (T, 3 * d, 2 * d), (T, d, d), (T, d, S), (T, S, d), (T, d, d)]
    expected = sum(2 * math.prod(sizes) for sizes in layer * 2 + [(T, d, V)])
    assert models.KINDS["conv"].forward_flops(CONFIG, S, T) == expected


def test_attention_without_scaling():
    query, key, value = normal(2, 3, 5, 7), normal(2, 3, 4, 7, seed=1), normal(2, 3, 4, 6, seed=2)
    logits = query @ key.swapaxes(-1, -2)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    close(models.unscaled_attention(query, key, value)[0], weights @ value, 1e-4, 1e-5)
    config = dataclasses.replace(CONFIG, num_heads=2)
    both = [models.KINDS[name].model(config) for name in ("transformer", "unscaled")]
    for model in both:
        model.build()
    both[1].set_weights(both[0].get_weights())
    outputs = [array(model((SOURCE, TARGET))) for model in both]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-4


def test_the_entropy_of_equal_weights_is_the_logarithm_of_their_number():
    model = tt.Transformer(CONFIG)
    model.build()
    for weight in model.weights:
        if "query" in weight.path:
            weight.assign(keras.ops.zeros_like(weight))
    assert measure.entropy(model, SOURCE) == pytest.approx((5 * math.log(5) + 3 * math.log(3)) / 8, rel=1e-5)


def test_a_model_without_positions_ignores_the_order_of_the_source():
    model = models.Unordered(CONFIG)
    model.build()
    close(model((SOURCE, TARGET)), model((SOURCE[:, [1, 0, 2, 3, 4]], TARGET)), 1e-4, 1e-5)


def test_the_rate_of_the_base_is_that_of_the_paper():
    ramp, schedule = models.Ramp((128 * 600) ** -0.5, 600, 600), tt.WarmupSchedule(128, 600)
    for step in (0, 10, 599, 600, 1_999):
        close(ramp(step), schedule(step))
    assert float(models.Ramp(0.004, 0, 600)(0)) == pytest.approx(0.004)


def test_the_grammar_finds_the_most_probable_tree():
    lines = [
        "(TOP (S (NP (PRP She)) (VP (VBD saw) (NP (DT the) (NN dog)))))",
        "(TOP (S (NP (PRP She)) (VP (VBD saw) (NP (DT the) (NN cat)))))",
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBD slept))))",
    ]
    grammar = pcfg.Grammar(map(read_tree, lines))
    assert [as_line(grammar.parse(read_tree(line).leaves())) for line in lines] == lines
    assert as_line(grammar.parse(["the"])) == "(TOP (DT the))"  # not a sentence of the grammar
    words = ["She", "saw", "the", "frog"]  # a word without a tree
    assert grammar.parse(words).leaves() == words


def test_the_plan_fits_a_weekend():
    trials = {json.dumps(trial.described): trial for name in plan.NAMES for trial in plan.trials_of(name, [])}
    assert sum(map(plan.estimate, trials.values())) < 40 * 3_600


@pytest.mark.program
def test_models_of_a_size_have_as_many_parameters():
    for trained in (*plan.SIZES.values(), plan.PARSERS):
        counts, trees = [], 7 if trained is plan.PARSERS else None
        for kind, config in trained.items():
            model = models.KINDS[kind].model(Trial(kind, config, trees=trees).configuration)
            model.build()
            counts.append(model.count_params())
        assert max(counts) < 1.03 * min(counts)


def test_rates_are_tuned_by_perplexity():
    trials = [trial for (trial,) in plan.tuning().values()]
    lines = [{"trial": trial.described, "perplexity": abs(trial.rate - 0.004)} for trial in trials]
    assert plan.tuned("lstm", lines[:-4]) == {"model": "lstm", "rate": 0.004}
    assert plan.tuned("conv", lines[:-4]) == {"model": "conv", "rate": 0.002}


def test_a_finished_trial_is_not_run_again(tmp_path, monkeypatch, capsys):
    ran = []

    def fake(trial, data, folder, deadline):
        if len(ran) == 2:
            raise TrainingInterrupted("stopped")
        ran.append(trial)
        return {"trial": trial.described}

    monkeypatch.setattr(measure, "measure", fake)
    argv = ["--data", str(tmp_path), "--experiment", "positions", "--results", str(tmp_path / "lines.jsonl")]
    run.main(argv)
    assert "run this command again" in capsys.readouterr().out
    ran.clear()
    run.main(argv)
    assert ran == plan.trials_of("positions", [])[2:]
    assert [line["trial"] for line in run.read(tmp_path / "lines.jsonl")] == [
        trial.described for trial in plan.trials_of("positions", [])
    ]
    run.main([*argv[:4], "--results", str(tmp_path / "none.jsonl"), "--hours", "0"])
    assert "no time left" in capsys.readouterr().out


def test_trials_of_a_curve_continue_one_run():
    for name, trials in plan.experiments([])["curves"].items():
        assert [trial.seed for trial in trials] == [1, 2], name
    trials = [trial for trial in plan.trials_of("curves", []) if trial.corpus == plan.CURVES and trial.steps != 2_000]
    assert len({trial.run for trial in trials}) == 3 * 2
    by_run = {run: [trial for trial in trials if trial.run == run] for run in {trial.run for trial in trials}}
    for parts in by_run.values():
        assert [trial.steps for trial in parts] == [mark for mark in plan.MARKS if mark != 2_000]
    assert Trial(seed=2).run != Trial().run == Trial(steps=7, after=3).run


def test_crossings_are_those_of_lines_in_the_logarithm():
    """The second curve is at 30 and rises by 1 with each doubling, the first one begins lower and rises by `rise`."""
    marks, noise = (500, 1_000, 2_000, 4_000), np.random.default_rng(0).normal(0, 0.5, 200)

    def curve(start, rise, samples):
        values = start + rise * np.log2(np.array(marks) / 500)
        return [page.Result([], value, value + samples) for value in values]

    for rise in (2.0, 3.5):
        value, low, high, share = page.crossing(curve(28, rise, noise), curve(30, 1.0, 0 * noise), marks)
        assert value == pytest.approx(500 * 2 ** (2 / (rise - 1)))
        expected = 500 * 2 ** (np.percentile(2 - noise, (2.5, 97.5)) / (rise - 1))
        if rise == 3.5:  # all samples cross between the marks
            assert (low, high) == pytest.approx(tuple(expected), rel=0.02) and share == 1
    assert page.crossing(curve(28, 1.0, noise / 9), curve(30, 1.0, noise / 9), marks) == (
        math.inf,
        math.inf,
        math.inf,
        0,
    )
    twice = [page.Result([], value, np.full(3, value)) for value in (29, 31, 29, 31)]
    assert page.crossing(twice, curve(30, 0.0, np.zeros(3)), marks)[:3] == pytest.approx([2_000 * 2**0.5] * 3)
    assert page.crossing(curve(31, 1.0, noise / 9), curve(30, 1.0, noise / 9), marks)[:3] == (500, 500, 500)


def line_of(trial, bleu, samples):
    return {"trial": trial.described, "perplexity": 7.0, "scores": {"test": {"bleu": bleu, "samples": samples}}}


def test_verdicts_are_those_of_intervals(monkeypatch):
    samples = np.random.default_rng(0).normal(30, 1, (2, 200)).round(2)
    changes = {"0.1": {}} | {f"{name} 0.0": {name: 0.0} for name in ("dropout", "label_smoothing")}
    groups = {name: plan.seeds(2, config=config) for name, config in changes.items()}
    monkeypatch.setattr(page, "experiments", lambda lines: {"regularization": groups})
    lines = [line_of(trial, 30.0, list(row)) for trial, row in zip(groups["0.1"], samples, strict=True)]
    assert "**Not run yet.**" in page.render("regularization", [])
    assert "**Run in part.**" in page.render("regularization", lines)
    lines += [line_of(trial, 28.0, list(row - 2)) for trial, row in zip(groups["dropout 0.0"], samples, strict=True)]
    assert "**Run in part.**" in page.render("regularization", lines)
    lines += [line_of(groups["label_smoothing 0.0"][0], 29.0, list(samples[0] + 3))]
    text = page.render("regularization", lines)
    assert "**Does not hold at this size.**" in text
    assert "0.1 > dropout 0.0: +2.00 [2.00, 2.00], holds" in text  # pairs: all samples differ by 2
    one_seed = page.results("regularization", lines)["label_smoothing 0.0"]
    close(page.bounds(one_seed.samples), np.percentile(samples[0] + 3, (2.5, 97.5)))
    both = page.results("regularization", lines)["0.1"]
    assert both.value == 30 and samples.std() / 1.6 < both.samples.std() < samples.std()


def test_the_page_shows_the_lines():
    text = page.PAGE.read_text(encoding="utf-8")
    lines = run.read(run.RESULTS)
    assert page.rewritten(text, lines) == text
    for name in plan.NAMES:
        assert page.PAGE.with_name(f"claims-{name}.png").exists() == bool(page.results(name, lines))
    planned = [trial.described for name in plan.NAMES for trial in plan.trials_of(name, lines)]
    for line in lines:
        assert line.keys() >= {"trial", "version", "machine", "seconds", "scores"} and "/" not in line["machine"]
        assert line["trial"] in planned


def test_pictures_have_bars_or_costs(tmp_path):
    for name in ("regularization", "cost", "curves"):
        trials = plan.trials_of(name, [])
        lines = [line_of(trial, 30.0, [29.0, 31.0]) | {"flop": 7e9, "seconds": 5} for trial in trials]
        page.draw(name, page.results(name, lines), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1_000
