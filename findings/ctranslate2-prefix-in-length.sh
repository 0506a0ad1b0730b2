#!/usr/bin/env bash
# CTranslate2 leaves a target prefix out of the score's sum, but counts it in the length that divides the sum.
#
# Expected: the prefix is in both, as a part of the output, or in neither, as in transformers, whose length penalty counts
#       only the generated tokens.
# Seen: the same continuation has a better score, the longer its prefix is: -0.95 without a prefix is -0.24 after six
#       tokens. Among hypotheses of one prefix, length counts the less, the longer the prefix is.
# Versions: ctranslate2 4.8.5.
# Source: update_sample_with_prefix in src/decoding.cc sets the log-probability of forced tokens to 0, and
#       finalize_hypothesis_score divides by the length of the whole output, in GreedySearch and BeamSearch.
# Met by: interactive translation by prefix, terminology by forced beginnings, and all multilingual models, whose prefix
#       is the language token: who compares scores, with other prefixes or other engines.
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
import ctranslate2
import numpy as np
from ctranslate2.specs.model_spec import OPTIONAL, LayerSpec

VOCABULARY = ["<unk>", "<s>", "</s>", "a", "b", "c", "d"]
PROBABILITIES = dict(zip(VOCABULARY, (1e-9, 1e-9, 0.4, 0.3, 0.15, 0.1, 0.05)))
ROWS = {"embeddings": 7, "embeddings_0": 7, "projection": 7, "ffn/linear_0": 16}
ROWS |= {"self_attention/linear_0": 24, "/attention/linear_1": 16}


def fill(layer, path=""):
    """Makes a model of zeros, whose biases of the output are all that there is."""
    for name, value in list(vars(layer).items()):
        if isinstance(value, LayerSpec):
            fill(value, f"{path}/{name}")
        elif isinstance(value, list):
            for index, item in enumerate(value):
                fill(item, f"{path}/{name}_{index}")
        elif value is None or (name == "bias" and value == OPTIONAL):
            rows = next((count for end, count in ROWS.items() if path.endswith(end)), 8)
            columns = 16 if path.endswith("ffn/linear_1") else 8
            setattr(layer, name, np.zeros((rows, columns) if name == "weight" else rows, np.float32))


spec = ctranslate2.specs.TransformerSpec.from_config((1, 1), 2)
fill(spec)
spec.decoder.projection.bias = np.log(np.array(list(PROBABILITIES.values()), np.float32))
spec.register_source_vocabulary(VOCABULARY)
spec.register_target_vocabulary(VOCABULARY)
spec.validate()
spec.save(".")
translator = ctranslate2.Translator(".", "cpu", compute_type="float32")
scores = {}
for prefix in ([], ["d"], ["d"] * 3, ["d"] * 6):
    options = {"target_prefix": [prefix], "length_penalty": 1, "max_decoding_length": len(prefix) + 2}
    options |= {"min_decoding_length": len(prefix) + 1, "beam_size": 4, "num_hypotheses": 4}
    result = translator.translate_batch([["a"]], return_scores=True, **options)[0]
    best = max(zip(result.scores, result.hypotheses), key=lambda pair: pair[1] == [*prefix, "a", "a"])
    scores[len(prefix)], tokens = best
    total = scores[len(prefix)] * len(tokens)
    print(f"{' '.join(tokens)}: score {scores[len(prefix)]:.4f} = {total:.4f} / {len(tokens)}")
    assert tokens == [*prefix, "a", "a"]
two = scores[0] * 2  # of two steps, without the end
for length, score in scores.items():
    assert abs(score - two / (length + 2)) < 1e-3, "a prefix counts in another way now"
END
