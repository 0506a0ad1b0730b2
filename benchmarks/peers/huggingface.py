"""MarianMTModel of Hugging Face: post-norm, tied embeddings and sinusoids, like the paper's."""

from benchmarks import common
from benchmarks.peers.torch_step import torch_step
from benchmarks.translation import exported, source_sentences

PAD, BEGIN, END = 0, 1, 2


def marian(work, args):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    torch.manual_seed(common.SEED)
    return transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=work.vocab_size,
            d_model=work.d_model,
            encoder_layers=work.num_layers,
            decoder_layers=work.num_layers,
            encoder_ffn_dim=work.d_ff,
            decoder_ffn_dim=work.d_ff,
            encoder_attention_heads=work.num_heads,
            decoder_attention_heads=work.num_heads,
            activation_function="swish" if work.marian else "relu",
            scale_embedding=True,
            dropout=work.dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            pad_token_id=PAD,
            decoder_start_token_id=BEGIN,
            eos_token_id=END,
            forced_eos_token_id=None,
            max_position_embeddings=256,
        )
    )


def training(work, args):
    import torch

    model = marian(work, args).train()
    forward = torch.compile(model) if args.mode == "compiled" else model

    def loss_of(source, target_in, target_out):
        logits = forward(input_ids=source, decoder_input_ids=target_in, use_cache=False).logits.float()
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), target_out.flatten(), label_smoothing=work.label_smoothing
        )

    return torch_step(model, loss_of, work, args)


def translation(work, args):
    import torch

    model, encode, decode = (from_checkpoint if work.marian else from_ids)(work, args)
    model.eval()
    if args.dtype == "bfloat16":
        model.to(torch.bfloat16)

    @torch.inference_mode()
    def request():
        ids = model.generate(
            **encode(),
            num_beams=work.beam_size,
            length_penalty=work.length_penalty,
            min_new_tokens=work.steps,
            max_new_tokens=work.steps,
            do_sample=False,
            use_cache=True,
        )
        decode(ids)
        return ids.shape[1] - 1

    return request


def from_ids(work, args):
    """Returns a random model, a function that returns the sources, and one that takes the outputs."""
    import torch

    source = torch.from_numpy(common.source_ids(work, args.sentences)).long()
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    return marian(work, args), lambda: inputs, lambda outputs: None


def from_checkpoint(work, args):
    """Does what `from_ids` does with a checkpoint and its tokenizer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(args.threads)
    path = exported(work, "float32", args.work, kind="marian")
    tokenizer = transformers.MarianTokenizer.from_pretrained(path)
    sentences = source_sentences(work, args.sentences, args.work)
    return (
        transformers.MarianMTModel.from_pretrained(path, dtype=torch.float32),
        lambda: tokenizer(sentences, padding=True, return_tensors="pt"),
        lambda outputs: tokenizer.batch_decode(outputs, skip_special_tokens=True),
    )


if __name__ == "__main__":
    common.run_peer(
        "huggingface",
        ["transformers", "torch"],
        {"training": training, "translation": translation},
        ("float32", "bfloat16"),
        ("eager", "compiled"),
    )
