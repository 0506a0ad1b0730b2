#!/usr/bin/env bash
# Marian's --transformer-train-position-embeddings trains no position embeddings.
#
# Expected: with this option, the file of weights has a table of positions, and training differs from that with sinusoids.
# Seen: model.npz has the same names and, from one seed, the same values with and without it. Its options store "true", so a
#       reader of the file looks for a table that does not exist.
# Versions: pymarian 1.12.42.
# Source: addSpecialEmbeddings in src/models/transformer.h of Marian reads the option transformer-train-positions, and
#       config_parser.cpp defines transformer-train-position-embeddings.
# Met by: who compares learned positions with sinusoids in Marian, or converts a model trained with the option.
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
models = {}
for name, more in (("fixed", ""), ("learned", "--transformer-train-position-embeddings")):
    _pymarian.Trainer(f"{training} --model {name}.npz {sizes} {vocabularies} {more}").train()
    models[name] = dict(np.load(f"{name}.npz"))
options = bytes(models["learned"].pop("special:model.yml")).decode()
models["fixed"].pop("special:model.yml")
print("stored:", next(line for line in options.splitlines() if "train-position" in line))
print("weights:", len(models["learned"]), "names of positions:", [name for name in models["learned"] if "pos" in name.lower()])
assert "transformer-train-position-embeddings: true" in options
assert models["learned"].keys() == models["fixed"].keys(), "the option adds weights now"
assert all(np.array_equal(models["learned"][name], value) for name, value in models["fixed"].items()), "weights differ now"
END
