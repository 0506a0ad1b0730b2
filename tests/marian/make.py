"""Makes a MarianMT checkpoint of random weights with Hugging Face's `transformers`, and writes its outputs.

    pip install torch "transformers<6" && python tests/marian/make.py tests/marian

The files here are by transformers 5.23.0 and torch 2.13.0.
"""

import json
import sys
from pathlib import Path

import numpy as np

VOCABULARY, PAD, END, UNKNOWN = 31, 30, 0, 1
SMALL = {
    "vocab_size": VOCABULARY,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 17,
    "decoder_ffn_dim": 19,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "eos_token_id": END,
    "forced_eos_token_id": None,
    "max_position_embeddings": 64,
}
LONGEST = 13


def make(folder, seed=6, **changes) -> None:
    """Writes config.json, vocab.json, model.safetensors and answers.npz, computed in float64."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    model = MarianMTModel(MarianConfig(**(SMALL | changes))).eval()
    sizes = {"weight": 0.7, "bias": 0.2}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "embed_positions" not in name:
                weight += torch.tensor(sizes[name.split(".")[-1]] * random.standard_normal(weight.shape))
        model.final_logits_bias += torch.tensor(random.standard_normal(VOCABULARY))
    model.generation_config.bad_words_ids = [[PAD]]  # like published checkpoints

    lengths = [11, 5, 2, 8, 11, 3, 7]
    source = np.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(source, lengths, strict=True):
        row[:length] = [*random.integers(1, PAD, length - 1), END]
    target = np.concatenate([np.full((len(lengths), 1), PAD), random.integers(0, PAD, (len(lengths), 8))], axis=1)
    ids, mask = torch.tensor(source), torch.tensor(source != PAD)
    model.save_pretrained(folder)
    names = {"</s>": END, "<unk>": UNKNOWN} | {f"▁{id}": id for id in range(2, PAD)} | {"<pad>": PAD}
    (Path(folder) / "vocab.json").write_text(json.dumps(names, ensure_ascii=False), encoding="utf-8")
    model = model.double()  # less rounding
    with torch.no_grad():
        outputs = model(input_ids=ids, attention_mask=mask, decoder_input_ids=torch.tensor(target))
        greedy = model.generate(ids, attention_mask=mask, num_beams=1, do_sample=False, max_new_tokens=LONGEST)
    np.savez(
        Path(folder) / "answers.npz",
        source=source,
        target=target,
        memory=outputs.encoder_last_hidden_state.numpy(),
        logits=outputs.logits.numpy(),
        greedy=greedy.numpy(),
    )


if __name__ == "__main__":
    make(sys.argv[1])
