#!/usr/bin/env bash
# Marian's beam gets narrower with each finished output, so --beam-size 4 ends as a greedy search.
#
# Expected: beam search of width 4 keeps four unfinished hypotheses until it ends, as in Hugging Face's transformers. On one
#       distribution with the same length normalization, both return the same n-best list.
# Seen: each finished hypothesis takes a place of the beam for good. After three short outputs the last hypothesis runs
#       by itself to the limit of length. The n-best lists share only some outputs, and of the four best that
#       transformers finds, Marian misses those of a later step with better scores than its own.
# Versions: pymarian 1.12.42, beside transformers 5.24.0.
# Source: BeamSearch::purgeBeams in src/translator/beam_search.cpp of Marian drops finished hypotheses from the beam, and the
#       next step's width is what remains. GenerationMixin._beam_search keeps num_beams running ones.
# Met by: who compares engines on OPUS-MT models at one beam size, or sets --normalize and --beam-size of one for the other.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
# One environment for all findings with PyTorch, which takes 6 GB.
packages="transformers==5.24.0 torch==2.14.1 accelerate==1.15.0 pymarian==1.12.42 torchmetrics==1.9.0 sacrebleu==2.6.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import json

import _pymarian
import numpy as np
import torch
import transformers
from transformers import MarianConfig, MarianMTModel

transformers.logging.set_verbosity_error()
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
limits = "--max-length-factor 2 --beam-size 4 --normalize 1 --n-best --quiet-translation"
output = _pymarian.Translator(f"--models m.npz {vocabularies} {limits}").translate("a b")  # 6 tokens, for two and the end
marian = {line.split(" ||| ")[1].strip(): float(line.rsplit("||| ", 1)[1]) for line in output.splitlines()}

sizes = {"vocab_size": 6, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
special = {"pad_token_id": 5, "decoder_start_token_id": 5, "eos_token_id": 0, "forced_eos_token_id": None}
model = MarianMTModel(MarianConfig(**sizes, **special)).eval()
with torch.no_grad():
    model.model.shared.weight.zero_()
    model.lm_head.weight.zero_()
    model.final_logits_bias[:] = torch.tensor([*log_probs, -30.0])
source = torch.tensor([[2, 3, 0]])
options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 6, "length_penalty": 1.0, "early_stopping": "never"}
options |= {"return_dict_in_generate": True, "output_scores": True, "attention_mask": torch.ones_like(source)}
found = model.generate(source, **options)
rows = ([id for id in row[1:] if id not in (0, 5)] for row in found.sequences.tolist())
theirs = {" ".join(NAMES[id] for id in row): score for row, score in zip(rows, found.sequences_scores.tolist())}
for name, outputs in (("Marian", marian), ("transformers", theirs)):
    print(name, {text: round(score, 3) for text, score in outputs.items()})
for text in marian.keys() & theirs.keys():
    assert abs(marian[text] - theirs[text]) < 1e-3  # the scores are the same, the searches are not
assert len(marian) == 4 and len([text for text in marian if len(text.split()) == 6]) == 1
better = [text for text, score in theirs.items() if text not in marian and score > min(marian.values()) + 1e-3]
print("better than Marian's last, and not found by it:", better)
assert better, "Marian keeps the width of its beam now"
END
