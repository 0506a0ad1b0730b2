#!/usr/bin/env bash
# CTranslate2's scores are not the model's log-probabilities: it normalizes again after every token that it disables.
#
# Expected: translate_batch and score_batch of one model agree on one output, and suppress_sequences changes which outputs
#       are found, not how probable an output is. So it is in transformers' beam search, which masks log-probabilities.
# Seen: the score of every output lacks the end token's share of the first step, since min_decoding_length is 1 and
#       disables it there. Each disabled token raises the scores of all others: outputs of searches with different
#       options cannot be compared, and a rescored n-best list changes its order.
# Versions: ctranslate2 4.8.5.
# Source: GreedySearch::search and BeamSearch::search in src/decoding.cc apply DisableTokens to logits before LogSoftMax.
# Met by: who ranks or filters by scores: reranking, confidence thresholds, back-translation, short sentences above all.
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


def log_probability(tokens):
    return sum(translator.score_batch([["a"]], [tokens])[0].log_probs)


def found(**options):
    options = {"beam_size": 3, "num_hypotheses": 3, "length_penalty": 0, "max_decoding_length": 4} | options
    result = translator.translate_batch([["a"]], return_scores=True, **options)[0]
    return {" ".join(tokens): score for tokens, score in zip(result.hypotheses, result.scores)}


plain, without_b = found(), found(suppress_sequences=[["b"]])
for name, outputs in (("plain search", plain), ("without b", without_b)):
    for text, score in outputs.items():
        print(f"{name}: {text!r} {score:.4f}, by score_batch {log_probability(text.split()):.4f}")
first_step = math.log(1 - PROBABILITIES["</s>"])
assert abs(plain["a"] - (log_probability(["a"]) - first_step)) < 1e-3, "the end token keeps its share in step 1 now"
steps = math.log(1 - PROBABILITIES["</s>"] - PROBABILITIES["b"]) + math.log(1 - PROBABILITIES["b"])
assert abs(without_b["a"] - (log_probability(["a"]) - steps)) < 1e-3, "suppressed tokens keep their share now"
END
