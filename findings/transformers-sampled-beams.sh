#!/usr/bin/env bash
# The scores of transformers' beam search with sampling are log-probabilities divided by the temperature: no probabilities.
#
# Expected: sequences_scores rank outputs by the model's log-probability, or by that of the distribution sampled from.
# Seen: log-probabilities are divided by the temperature and never normalized again, so that those of one step no longer
#       sum to 1: at 0.5 every score is twice the model's. Scores of different temperatures, and thresholds on them, do not
#       compare, although the outputs' own probabilities do. CTranslate2 returns the model's log-probability there.
# Versions: transformers 5.24.0.
# Source: GenerationMixin._beam_search in transformers/generation/utils.py takes log_softmax, then applies the warpers to
#       the result and adds it up. TemperatureLogitsWarper divides, and renormalize_logits defaults to off.
# Met by: who samples n-best lists, as for back-translation or minimum Bayes risk, and filters them by score.
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
log_probs = torch.log(torch.tensor([0.25, 1e-9, 0.35, 0.25, 0.15, 1e-9]))
with torch.no_grad():  # every step has these probabilities
    model.model.shared.weight.zero_()
    model.lm_head.weight.zero_()
    model.final_logits_bias[:] = log_probs
source = torch.tensor([[A, B, END]])
by_temperature = {}
for temperature in (0.5, 1.0, 2.0):
    torch.manual_seed(0)
    options = {"do_sample": True, "temperature": temperature, "num_beams": 3, "num_return_sequences": 3, "top_k": 0}
    options |= {"max_new_tokens": 4, "length_penalty": 0.0, "output_scores": True, "return_dict_in_generate": True}
    found = model.generate(source, attention_mask=torch.ones_like(source), **options)
    for ids, score in zip(found.sequences.tolist(), found.sequences_scores.tolist()):
        ids = [id for id in ids[1:] if id != PAD]
        own = sum(log_probs[id].item() for id in ids)
        print(f"temperature {temperature}: {ids} score {score:.4f}, model's log-probability {own:.4f}")
        assert abs(score - own / temperature) < 1e-3, "scores of sampled beams are other numbers now"
    step = found.scores[0][0].exp().sum().item()
    print(f"    probabilities of the first step sum to {step:.3f}")
    assert (abs(step - 1) < 1e-3) == (temperature == 1.0)
END
