#!/usr/bin/env bash
# Marian's scores of sampled outputs contain the noise that drew them: they are no log-probabilities.
#
# Expected: with --output-sampling, the n-best list and the word scores have the log-probability of what was drawn, under
#       the model or under the distribution after top-k.
# Seen: the same output has another score in each draw. The feature F0 of the same line is the model's log-probability, and
#       the word scores beside it do not add up to it.
# Versions: pymarian 1.12.42.
# Source: gumbelMaxTrick in src/translator/sampling.h of Marian normalizes the scores after it added Gumbel noise, and
#       BeamSearch::search in beam_search.cpp adds the result to the path's score.
# Met by: sampled back-translation that filters or weighs pairs by score.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="pymarian==1.12.42 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import json

import _pymarian
import numpy as np

NAMES, PROBABILITIES = ["</s>", "<unk>", "a", "b", "c"], np.array([0.25, 1e-9, 0.35, 0.25, 0.15])
log_probs = np.log(PROBABILITIES).astype(np.float32)
with open("v.yml", "w") as file:
    file.writelines(f"{json.dumps(name)}: {id}\n" for id, name in enumerate(NAMES))
with open("t", "w") as file:
    file.write("a b c\n" * 4)
sizes = "--dim-vocabs 5 5 --dim-emb 8 --transformer-dim-ffn 8 --transformer-heads 2 --enc-depth 1 --dec-depth 1"
vocabularies = "--vocabs v.yml v.yml --cpu-threads 1 --workspace 128 --quiet"
training = "--mini-batch 2 --after 1u --save-freq 1u --tied-embeddings-all --type transformer --model m.npz --train-sets t t"
_pymarian.Trainer(f"{training} {sizes} {vocabularies}").train()
weights = dict(np.load("m.npz"))  # one update made the file; now every step gets the same probabilities
weights = {name: value if name.startswith("special") else np.zeros_like(value) for name, value in weights.items()}
weights["decoder_ff_logit_out_b"] = log_probs.reshape(1, -1)
np.savez("m.npz", **weights)
options = "--beam-size 1 --output-sampling --n-best --word-scores --mini-batch 64 --quiet-translation --seed 1"
output = _pymarian.Translator(f"--models m.npz {vocabularies} {options}").translate("\n".join(["a"] * 200))
scores = {}
for line in output.splitlines():
    _, text, words, feature, score = line.split("|||")
    scores.setdefault(text.strip(), []).append((float(feature.split("=")[1]), float(score)))
    assert abs(sum(map(float, words.split("=")[1].split())) - float(score)) < 1e-2
text = max(scores, key=lambda text: (len(text.split()) == 1, len(scores[text])))
own = log_probs[NAMES.index(text)] + log_probs[0]
drawn = [score for _, score in scores[text]]
print(f"{text!r}, drawn {len(drawn)} times, log-probability {own:.3f}, scores {min(drawn):.3f} to {max(drawn):.3f}")
assert all(abs(feature - own) < 1e-2 for feature, _ in scores[text])
assert len(drawn) > 3 and max(drawn) - min(drawn) > 0.1, "scores have no noise now"
END
