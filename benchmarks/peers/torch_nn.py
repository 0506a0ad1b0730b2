"""torch.nn.Transformer with tied embeddings and sinusoids. It has no cache and no search, so it only trains."""

import math

from benchmarks import common
from benchmarks.peers.torch_step import torch_step


def training(work, args):
    import torch
    from torch import nn

    torch.set_num_threads(args.threads)
    torch.manual_seed(common.SEED)

    class Translation(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(work.vocab_size, work.d_model)
            nn.init.normal_(self.embedding.weight, std=work.d_model**-0.5)
            self.transformer = nn.Transformer(
                work.d_model,
                work.num_heads,
                work.num_layers,
                work.num_layers,
                work.d_ff,
                work.dropout,
                batch_first=True,
            )
            for module in self.transformer.modules():  # only the paper's dropout
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0
                if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                    module.dropout.p = 0.0
            self.dropout = nn.Dropout(work.dropout)
            turns = torch.exp(torch.arange(0, work.d_model, 2) * (-math.log(10_000.0) / work.d_model))
            angles = torch.arange(work.length)[:, None] * turns
            self.register_buffer("sinusoids", torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1))

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * math.sqrt(work.d_model) + self.sinusoids)

        def forward(self, source, target_in, target_out):
            causal = nn.Transformer.generate_square_subsequent_mask(work.length)
            x = self.transformer(self.embed(source), self.embed(target_in), tgt_mask=causal, tgt_is_causal=True)
            logits = nn.functional.linear(x, self.embedding.weight).float().flatten(0, 1)
            return nn.functional.cross_entropy(logits, target_out.flatten(), label_smoothing=work.label_smoothing)

    model = Translation().train()
    loss_of = torch.compile(model) if args.mode == "compiled" else model
    return torch_step(model, loss_of, work, args)


if __name__ == "__main__":
    common.run_peer("torch_nn", ["torch"], {"training": training}, ("float32", "bfloat16"), ("eager", "compiled"))
