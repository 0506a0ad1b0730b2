#!/usr/bin/env bash
# repetition_penalty of transformers is one rule with beams and another without: greedy outputs depend on the logits' offset.
#
# Expected: the penalty is a property of the distribution. A constant added to all logits changes nothing, and greedy
#       search is what a beam search of width 1 would be.
# Seen: greedy search divides positive logits and multiplies negative ones, so models with the same probabilities give
#       different outputs, and a repeated token with a logit of 0 is not penalized at all. Beam search always multiplies
#       log-probabilities. One setting of the penalty is thus weak or strong by chance of the training.
# Versions: transformers 5.24.0.
# Source: RepetitionPenaltyLogitsProcessor.__call__ branches on the sign of its scores. GenerationMixin._sample passes raw
#       logits, _beam_search log-probabilities (transformers/generation/utils.py).
# Met by: who tunes the penalty with greedy search and serves with beams, or moves it between checkpoints or engines.
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
import torch
import transformers
from transformers import MarianConfig, MarianMTModel

transformers.logging.set_verbosity_error()
END, A, B, C, PAD = 0, 2, 3, 4, 5  # 1 is unknown
sizes = {"vocab_size": 6, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
special = {"pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": END, "forced_eos_token_id": None}
model = MarianMTModel(MarianConfig(**sizes, **special)).eval()
log_probs = torch.log(torch.tensor([0.25, 1e-9, 0.4, 0.2, 0.15, 1e-9]))
with torch.no_grad():  # every step has these probabilities
    model.model.shared.weight.zero_()
    model.lm_head.weight.zero_()
    model.final_logits_bias[:] = log_probs
source = torch.tensor([[A, B, END]])


def outputs(beams, offset):
    with torch.no_grad():
        model.final_logits_bias[:] = log_probs + offset
    options = {"repetition_penalty": 1.3, "num_beams": beams, "max_new_tokens": 6, "do_sample": False}
    ids = model.generate(source, attention_mask=torch.ones_like(source), **options)[0].tolist()
    return [id for id in ids[1:] if id != PAD]


for beams in (1, 2):
    found = {offset: outputs(beams, offset) for offset in (-6.0, 0.0, 0.9, 6.0)}
    print("greedy" if beams == 1 else f"{beams} beams", found)
    alike = all(ids == found[0.0] for ids in found.values())
    assert alike == (beams > 1), "the penalty depends on other things now"
END
