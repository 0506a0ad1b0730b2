"""A training step in PyTorch, the same for all peers that are made of it."""

import itertools

from benchmarks import common


def torch_step(model, loss_of, work, args):
    """A function that makes one step with Adam.

    Args:
        model: its parameters are trained.
        loss_of: (source [B, S], target_in [B, T], target_out [B, T]) -> the mean loss, in float32.
        work: `common.Work`.
        args: of the command line; with the dtype bfloat16 products are made in that.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device)
    adam = torch.optim.Adam(
        model.parameters(), work.learning_rate, (work.beta_1, work.beta_2), work.epsilon, fused=True
    )
    batches = itertools.cycle(
        [[torch.from_numpy(ids).long().to(device) for ids in batch] for batch in common.training_batches(work)]
    )

    def step():
        source, target = next(batches)
        with torch.autocast(device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = loss_of(source, target[:, :-1], target[:, 1:])
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss.item()

    return step
