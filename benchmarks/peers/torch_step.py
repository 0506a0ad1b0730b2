"""Training step of all PyTorch peers."""

import itertools

from benchmarks import common


def torch_step(model, loss_of, work, args):
    """Returns a function that makes one step with Adam.

    Args:
        model: Model to train.
        loss_of: Function of source [B, S], target_in [B, T] and target_out [B, T]. Returns the mean loss in float32.
        work: `common.Work`.
        args: Arguments of the command line. With the dtype bfloat16 matmuls are in bfloat16.
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
