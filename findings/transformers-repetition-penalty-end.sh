#!/usr/bin/env bash
# repetition_penalty of transformers makes models that start with </s>, such as M2M100, NLLB and BART, avoid the end.
#
# Expected: the penalty is for words that were generated. Before the first word, no token was.
# Seen: the decoder's start token counts as generated, and these models start with </s>, the end token. From the first step
#       on, its log-probability is multiplied by the penalty: outputs get longer, and the most, where the model is least
#       sure that it is done. Marian and T5 start with padding and are free of it. generate has no option that leaves
#       the start out, since prompt_ignore_length belongs to a processor built by hand.
# Versions: transformers 5.24.0.
# Source: RepetitionPenaltyLogitsProcessor.__call__ in transformers/generation/logits_process.py penalizes all of
#       input_ids, which are the decoder's from its start token on.
# Met by: who sets the penalty against loops in NLLB's outputs, and gets longer loops.
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
from transformers import M2M100Config, M2M100ForConditionalGeneration

transformers.logging.set_verbosity_error()
START, PAD, END, UNKNOWN, LANGUAGE = range(5)
sizes = {"vocab_size": 9, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 32}
model = M2M100ForConditionalGeneration(M2M100Config(**sizes)).eval()
probabilities = torch.tensor([1e-9, 1e-9, 0.35, 1e-9, 1e-9, 0.25, 0.2, 0.15, 0.05])
with torch.no_grad():  # the decoder's last vector is constant, so every step has these probabilities
    for weight in model.parameters():
        weight.zero_()
    model.model.decoder.layer_norm.bias[0] = 1
    model.model.shared.weight[:, 0] = torch.log(probabilities)
assert model.config.decoder_start_token_id == END == model.config.eos_token_id
source, lengths = torch.tensor([[LANGUAGE, 5, 6, END]]), {}
for penalty in (1.0, 1.5, 2.0):
    options = {"forced_bos_token_id": LANGUAGE, "repetition_penalty": penalty, "max_length": 20, "num_beams": 1}
    options |= {"output_scores": True, "return_dict_in_generate": True, "attention_mask": torch.ones_like(source)}
    found = model.generate(source, do_sample=False, **options)
    end = found.scores[1].softmax(-1)[0, END].item()  # scores[0] is for the language
    lengths[penalty] = len(found.sequences[0]) - 2
    print(f"penalty {penalty}: the end has probability {end:.3f} before the first word; {found.sequences[0].tolist()}")
assert lengths[1.0] == 1 < lengths[1.5] <= lengths[2.0], "the start token is not penalized now"
END
