#!/usr/bin/env bash
# PyTorch's attention has other results in evaluation: a row of padding is NaN, and `is_causal=True` sees later tokens.
#
# Expected: Without dropout, `eval()` and `no_grad()` change nothing but rounding. A call that raises in training raises
# in evaluation.
# Seen: In `nn.MultiheadAttention` and `nn.TransformerDecoder`, a row whose keys are all padding is finite in training
# and NaN in evaluation without gradients. With `need_weights=True`, it is always NaN. `nn.TransformerEncoder` with
# `is_causal=True` and no mask raises in training, since it is only a hint, and in evaluation each token depends on
# later ones.
# Versions: torch 2.14.1.
# Source: the fast path in `MultiheadAttention.forward` of torch/nn/modules/activation.py and in
# torch/nn/modules/transformer.py. On `need_weights`, pytorch/pytorch#160064.
# Met by: batches that are filled with empty rows, whose NaN spreads in a sum, and searches that pass `is_causal=True`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="transformers==5.24.0 torch==2.14.1 accelerate==1.15.0 pymarian==1.12.42 torchmetrics==1.9.0 sacrebleu==2.6.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" -W ignore - <<'END'
import torch
from torch import nn

torch.manual_seed(0)
D, HEADS = 8, 2
attention = nn.MultiheadAttention(D, HEADS, batch_first=True)
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(D, HEADS, 16, dropout=0.0, batch_first=True), 1)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, HEADS, 16, dropout=0.0, batch_first=True), 1)
x, memory = torch.randn(2, 4, D), torch.randn(2, 3, D)
padding = torch.tensor([[False] * 4, [True] * 4])  # the second row is empty
later = x.clone()
later[:, -1] += 1.0


def of_all():
    """Returns which outputs have NaN, and whether the first token depends on the last one."""
    seen = {
        "attention": attention(x, x, x, key_padding_mask=padding, need_weights=False)[0].isnan().any().item(),
        "attention, need_weights": attention(x, x, x, key_padding_mask=padding)[0].isnan().any().item(),
        "decoder": decoder(x, memory, tgt_key_padding_mask=padding).isnan().any().item(),
    }
    try:
        first, changed = encoder(x, is_causal=True)[:, 0], encoder(later, is_causal=True)[:, 0]
        seen["causal"] = "sees later tokens" if (first - changed).abs().max() > 1e-3 else "sees no later tokens"
    except RuntimeError:
        seen["causal"] = "raises"
    return seen


training = of_all()
for module in (attention, decoder, encoder):
    module.eval()
with torch.no_grad():
    evaluation = of_all()
for name in training:
    what = "" if name == "causal" else ", NaN for an empty row"
    print(f"{name}{what}: {training[name]} in training, {evaluation[name]} in evaluation")
assert not training["attention"] and evaluation["attention"], "both modes treat an empty row alike"
assert training["attention, need_weights"] and evaluation["attention, need_weights"], "need_weights changes nothing"
assert not training["decoder"] and evaluation["decoder"], "the decoder treats an empty row alike in both modes"
assert (training["causal"], evaluation["causal"]) == ("raises", "sees later tokens"), "both modes treat is_causal alike"
END
