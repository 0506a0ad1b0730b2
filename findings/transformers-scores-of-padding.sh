#!/usr/bin/env bash
# compute_transition_scores of transformers gives padding after the end of an output scores, which enter its sum.
#
# Expected: as with beams, where the steps after the end are 0: the sum over a row is the output's log-probability.
# Seen: in greedy search and sampling of several outputs, rows that end early go on with the log-probability of the padding
#       token at each step that others need. The sum depends on the longest output in the batch, so a sentence scores
#       differently in a batch than alone.
# Versions: transformers 5.24.0.
# Source: GenerationMixin.compute_transition_scores in transformers/generation/utils.py makes beam indices of its own where
#       there are none, without the -1 of finished beams that its mask of padding needs.
# Met by: who computes confidence or perplexity of batched outputs as the docstring's example does for one.
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
log_probs = torch.log(torch.tensor([0.4, 1e-9, 0.35, 0.15, 0.1, 0.01]))
with torch.no_grad():  # every step has these probabilities
    model.model.shared.weight.zero_()
    model.lm_head.weight.zero_()
    model.final_logits_bias[:] = log_probs
source = torch.tensor([[A, B, END]])
torch.manual_seed(3)
options = {"do_sample": True, "top_k": 0, "max_new_tokens": 6, "output_scores": True, "return_dict_in_generate": True}
mask = torch.ones_like(source)
found = model.generate(source, attention_mask=mask, num_return_sequences=6, **options)
scores = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
wrong = 0
for ids, row in zip(found.sequences[:, 1:].tolist(), scores):
    length = ids.index(END) + 1 if END in ids else len(ids)
    own, total = log_probs[ids[:length]].sum().item() - length * log_probs.exp().sum().log().item(), row.sum().item()
    print(f"{ids}: sum {total:.3f}, without padding {row[:length].sum().item():.3f}, log-probability {own:.3f}")
    assert abs(row[:length].sum().item() - own) < 1e-3
    wrong += abs(total - own) > 1
assert wrong > 0, "padding has no scores now"
options |= {"do_sample": False, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
found = model.generate(source, attention_mask=mask, **{name: value for name, value in options.items() if name != "top_k"})
scores = model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
print("beams: sums", scores.sum(1).tolist(), "scores", found.sequences_scores.tolist())
assert torch.allclose(scores.sum(1), found.sequences_scores, atol=1e-3)
END
