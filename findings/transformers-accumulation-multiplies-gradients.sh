#!/usr/bin/env bash
# With gradient accumulation, transformers' Trainer multiplies the gradient of translation models by the number of
# batches.
#
# Expected: gradient_accumulation_steps=4 with 4 batches of 2 rows makes the update of one batch of 8 rows, so a smaller
# GPU trains the same model. The logged loss does not change.
# Seen: The gradient, its norm and the logged loss are four times as large. Losses of MarianMT, M2M100 (NLLB), BART and
# T5 are means over a batch. The Trainer does not divide them by the number of batches, because `forward` takes any
# keyword, so it seems to divide by num_items_in_batch. With label_smoothing_factor, which takes the loss out of the
# model, the update is right.
# Versions: transformers 5.24.0, torch 2.14.1, accelerate 1.15.0.
# Source: `Trainer.training_step` and `model_accepts_loss_kwargs` in src/transformers/trainer.py, the loss in
# `MarianMTModel.forward`; huggingface/transformers#47688.
# Met by: those who fine-tune a translation model with accumulation. Clipping hides it in part, since Adam hides a
# constant factor, but max_grad_norm then clips at a quarter of the norm.
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
export HF_HUB_OFFLINE=1
cat > run.py <<'END'
import contextlib
import copy
import io
import warnings

import numpy as np
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration, MarianConfig, MarianMTModel
from transformers import Trainer, TrainingArguments

warnings.filterwarnings("ignore")
SIZES = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32}
SIZES |= {"decoder_ffn_dim": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0}
SIZES |= {"attention_dropout": 0.0, "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
SIZES |= {"max_position_embeddings": 32, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
generator = np.random.default_rng(0)
rows = [{"input_ids": generator.integers(3, 50, 8), "labels": generator.integers(3, 50, 8)} for _ in range(8)]


def update(model, rows_per_batch, batches):
    """Returns the norm of the change of the weights by one step of SGD, and the logged loss."""
    trained = copy.deepcopy(model)
    arguments = TrainingArguments(
        "output",
        per_device_train_batch_size=rows_per_batch,
        gradient_accumulation_steps=batches,
        max_steps=1,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=1e9,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(trained, arguments, train_dataset=rows)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    squares = sum((after - before).square().sum() for after, before in zip(trained.parameters(), model.parameters()))
    return squares.sqrt().item(), float(trainer.state.log_history[0]["loss"])


for kind, config in ((MarianMTModel, MarianConfig), (M2M100ForConditionalGeneration, M2M100Config)):
    torch.manual_seed(0)
    model = kind(config(**SIZES))
    whole, loss = update(model, 8, 1)
    accumulated, sum_of_losses = update(model, 2, 4)
    print(f"{kind.__name__}: one batch of 8 moves the weights by {whole:.4f}, loss {loss:.3f}")
    print(f"    4 batches of 2 move them by {accumulated:.4f}, loss {sum_of_losses:.3f}")
    assert abs(accumulated / whole - 4) < 0.01, "the gradient is a mean over the batches now"
END
"$environment/bin/python" run.py 2> log || { tail -3 log; exit 1; }
