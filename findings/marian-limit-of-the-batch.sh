#!/usr/bin/env bash
# Marian's --max-length-factor counts the longest source of a batch, so other sentences change where an output is cut.
#
# Expected: a sentence has the same greedy output in a batch as by itself. At most its own length times the factor is written.
# Seen: a model that never ends a sentence writes 6 tokens for "a" by itself, and 21 next to a source of six words.
# Versions: pymarian 1.12.42.
# Source: BeamSearch::search in src/translator/beam_search.cpp of Marian multiplies the factor by batch->front()->batchWidth().
# Met by: who compares outputs of an early checkpoint, whose long outputs repeat, at two batch sizes or with another engine.
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

NAMES = ["</s>", "<unk>", "a", "b", "c"]
with open("v.yml", "w") as file:
    file.writelines(f"{json.dumps(name)}: {id}\n" for id, name in enumerate(NAMES))
with open("t", "w") as file:
    file.write("a b c\n" * 4)
sizes = "--dim-vocabs 5 5 --dim-emb 8 --transformer-dim-ffn 8 --transformer-heads 2 --enc-depth 1 --dec-depth 1"
vocabularies = "--vocabs v.yml v.yml --cpu-threads 1 --workspace 128 --quiet"
training = "--mini-batch 2 --after 1u --save-freq 1u --tied-embeddings-all --type transformer --train-sets t t --seed 1"
_pymarian.Trainer(f"{training} --model m.npz {sizes} {vocabularies}").train()
weights = dict(np.load("m.npz"))  # one update made the file; now every step gets the same probabilities, with no end
weights = {name: value if name.startswith("special") else np.zeros_like(value) for name, value in weights.items()}
weights["decoder_ff_logit_out_b"] = np.log([[1e-9, 1e-9, 0.5, 0.3, 0.2]]).astype(np.float32)
np.savez("m.npz", **weights)
options = "--max-length-factor 3 --beam-size 1 --mini-batch 8 --maxi-batch 1 --quiet-translation"
lengths = {}
for name, texts in (("by itself", ["a"]), ("in a batch", ["a", "a b c a b c"])):
    translator = _pymarian.Translator(f"--models m.npz {vocabularies} {options}")
    lengths[name] = len(translator.translate("\n".join(texts)).split("\n")[0].split())
print("tokens for the source 'a', factor 3:", lengths)
assert lengths["by itself"] == 6, "the limit of one sentence is another now"
assert lengths["in a batch"] == 21, "the batch does not change the limit now"
END
