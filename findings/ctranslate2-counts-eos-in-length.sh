#!/usr/bin/env bash
# CTranslate2's length penalty counts EOS, which its outputs do not contain.
#
# Expected: `length_penalty=1` divides a score by the number of tokens of the output, as its length suggests.
# Seen: The score of an output of n tokens is its log-probability divided by (n + 1)^penalty. The search keeps EOS in
# its hypotheses and removes it from the returned tokens.
# Versions: ctranslate2 4.8.5.
# Source: `finalize_hypothesis_score` in src/decoding.cc of OpenNMT/CTranslate2, with `include_eos_in_hypotheses` of
# `DecodingOptions`.
# Met by: those who compare or port scores between engines.
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


engine = translator([0.3, 0.5, 0.19, 0.01])
options = {
    "beam_size": 3,
    "min_decoding_length": 0,
    "max_decoding_length": 4,
    "return_scores": True,
    "num_hypotheses": 3,
}
(plain,), (divided,) = (engine.translate_batch([["a"]], length_penalty=penalty, **options) for penalty in (0, 1))
scores = dict(zip(map(tuple, divided.hypotheses), divided.scores))
for tokens, score in zip(plain.hypotheses, plain.scores):
    divisor = score / scores[tuple(tokens)]
    print(f"output {tokens}: log-probability {score:.4f}, divided by {divisor:.3f}")
    assert abs(divisor - len(tokens) - 1) < 1e-3, "the length penalty counts other tokens now"
END
