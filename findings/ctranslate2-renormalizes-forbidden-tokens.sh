#!/usr/bin/env bash
# CTranslate2 forbids tokens before the softmax, so the scores of outputs rise when other tokens are forbidden.
#
# Expected: The score of an output is its log-probability under the model. Forbidding an output, such as the empty
# one, leaves the scores of the others as they are.
# Seen: A forbidden token gets the logit -inf, and the rest is normalized to 1. With EOS at 0.6 and `a` at 0.3, the
# default `min_decoding_length=1` scores `a` with log(0.3 / 0.4 * 0.6), not log(0.3 * 0.6). `score_batch` returns the
# latter.
# Versions: ctranslate2 4.8.5.
# Source: `apply_min_length`, `DisableTokens::apply` and the LogSoftMax after it in `BeamSearch::search`,
# src/decoding.cc of OpenNMT/CTranslate2.
# Met by: those who rank outputs, filter by score, or compare scores with another engine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="ctranslate2==4.8.5 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import math
import os

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec

TOKENS = ["<unk>", "<s>", "</s>", "a", "b", "c"]
WIDTH = 8


def translator(probabilities):
    """Returns a Transformer that predicts </s>, a, b, c with these probabilities after every prefix."""
    # All weights are 0 but one bias.
    spec = TransformerSpec.from_config(num_layers=1, num_heads=2)

    def fill(linear, outputs):
        linear.weight, linear.bias = np.zeros((outputs, WIDTH), "float32"), np.zeros(outputs, "float32")

    def fill_norm(norm):
        norm.gamma, norm.beta = np.ones(WIDTH, "float32"), np.zeros(WIDTH, "float32")

    for side in (spec.encoder, spec.decoder):
        for layer in side.layer:
            attentions = [(layer.self_attention, (3, 1))]
            if hasattr(layer, "attention"):
                attentions.append((layer.attention, (1, 2, 1)))
            for attention, sizes in attentions:
                for linear, size in zip(attention.linear, sizes):
                    fill(linear, size * WIDTH)
                fill_norm(attention.layer_norm)
            fill(layer.ffn.linear_0, WIDTH)
            fill(layer.ffn.linear_1, WIDTH)
            fill_norm(layer.ffn.layer_norm)
        fill_norm(side.layer_norm)
        side.position_encodings.encodings = np.zeros((64, WIDTH), "float32")
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = np.zeros((6, WIDTH), "float32")
    spec.decoder.projection.weight = np.zeros((6, WIDTH), "float32")
    spec.decoder.projection.bias = np.log(np.array([1e-9, 1e-9, *probabilities], "float32"))
    spec.register_source_vocabulary(TOKENS)
    spec.register_target_vocabulary(TOKENS)
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(None)
    os.makedirs("model")
    spec.save("model")
    return ctranslate2.Translator("model")


engine = translator([0.6, 0.3, 0.08, 0.02])
options = {"beam_size": 2, "length_penalty": 0, "return_scores": True, "num_hypotheses": 2}
(default,) = engine.translate_batch([["a"]], **options)
(free,) = engine.translate_batch([["a"]], min_decoding_length=0, **options)
(forced,) = engine.score_batch([["a"]], [["a"]])
scores = {
    name: dict(zip(map(" ".join, result.hypotheses), result.scores))
    for name, result in (("default", default), ("free", free))
}
print(
    "probability of the output a:",
    {name: round(math.exp(score["a"]), 3) for name, score in scores.items()},
    "by score_batch",
    round(math.exp(sum(forced.log_probs)), 3),
    "of the empty output",
    {name: round(math.exp(score[""]), 3) for name, score in scores.items() if "" in score},
)
assert abs(scores["free"]["a"] - math.log(0.3 * 0.6)) < 1e-3, "scores mean something else"
assert abs(sum(forced.log_probs) - math.log(0.3 * 0.6)) < 1e-3, "score_batch normalizes in another way"
assert abs(scores["default"]["a"] - math.log(0.3 / 0.4 * 0.6)) < 1e-3, "forbidden tokens no longer change scores"
END
