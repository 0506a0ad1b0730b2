#!/usr/bin/env bash
# CTranslate2 scores an alternative by its first word's log-probability plus the mean of all others, a sum of two units.
#
# Expected: with return_alternatives, scores are those of translate_batch for the same output, the sum of all steps divided
#       by length ** length_penalty, so that the first alternative scores as the translation does.
# Seen: only the part after the alternative word is divided by its length. The word that users choose among weighs as much
#       as the whole rest, and the same output has one score as a translation and another as an alternative: -0.99 and
#       -1.88 here. With length_penalty=0 both are equal.
# Versions: ctranslate2 4.8.5.
# Source: decode_alternatives in src/decoding.cc adds suffix.scores[0], which finalize_result divided by the length of the
#       suffix, to the score of the expanded word, which a BeamSearch over one step made.
# Met by: interactive editors that rank alternatives at a word, or show them beside the translation's score.
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

import ctranslate2
import numpy as np
from ctranslate2.specs.model_spec import OPTIONAL, LayerSpec

VOCABULARY = ["<unk>", "<s>", "</s>", "a", "b", "c", "d"]
PROBABILITIES = dict(zip(VOCABULARY, (1e-9, 1e-9, 0.2, 0.35, 0.25, 0.15, 0.05)))
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
by_penalty = {}
for penalty in (0, 1):
    options = {"max_decoding_length": 4, "return_scores": True, "beam_size": 1, "length_penalty": penalty}
    translation = translator.translate_batch([["a"]], **options)[0]
    result = translator.translate_batch([["a"]], return_alternatives=True, num_hypotheses=3, **options)[0]
    alternatives = {" ".join(tokens): score for tokens, score in zip(result.hypotheses, result.scores)}
    text, score = " ".join(translation.hypotheses[0]), translation.scores[0]
    by_penalty[penalty] = score, alternatives[text]
    print(f"length penalty {penalty}: translation {text!r} {score:.4f}, alternatives", end=" ")
    print({name: round(value, 4) for name, value in alternatives.items()})
first, step = math.log(PROBABILITIES["a"] / (1 - PROBABILITIES["</s>"])), math.log(PROBABILITIES["a"])
assert abs(by_penalty[0][0] - by_penalty[0][1]) < 1e-3 and abs(by_penalty[0][0] - (first + 3 * step)) < 1e-3
assert abs(by_penalty[1][0] - (first + 3 * step) / 4) < 1e-3
assert abs(by_penalty[1][1] - (first + 3 * step / 3)) < 1e-3, "alternatives are scored in another way now"
END
