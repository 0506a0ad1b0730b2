"""Trains an M2M100 checkpoint with Hugging Face's `transformers` in PyTorch, and writes its outputs.

    pip install torch "transformers<6" && python tests/m2m100/m2m100_make.py tests/m2m100/trained

The model translates the toy corpus in both directions. The one here is by transformers 5.24.0 and torch 2.13.0.
"""

import itertools
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import sentencepiece

from tf_transformer.data import toy_corpus

STEPS, TOKENS, RATE = 5000, 1500, 4e-3
PIECES = "sentencepiece.bpe.model"
PADDING, END, UNKNOWN = 1, 2, 3
SMALL = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 53,
    "decoder_ffn_dim": 79,
    "attention_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "max_position_embeddings": 64,
}
HOSTILE = [
    "</s>",
    "<pad> a",
    "__en__ a",
    "<unk> a",
    "<s> ▁ ▁▁a",
    "",
    "   ",
    " a  b ",
    "\u2047 \ufffd <0x41>",
    "東京 😀",
]
HOSTILE += ["\x00\x01", "door " * 300, "e\u0301\ufb01", "a\tb\nc\u00a0d\u3000e\u2003f"]


def learn_pieces(file: Path, sentences, size: int, normalization: str = "identity"):
    """A SentencePiece model of byte pairs. Without a table of normalization its file is 240 KB smaller."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_prefix=str(file),
        vocab_size=size,
        model_type="bpe",
        normalization_rule_name=normalization,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    file.with_name(f"{file.name}.vocab").unlink()
    file.with_name(f"{file.name}.model").rename(file)
    return sentencepiece.SentencePieceProcessor(model_file=str(file))


def write_vocabulary(folder: Path, sentences, size: int = 260, normalization: str = "identity") -> int:
    """Writes sentencepiece.bpe.model, and vocab.json with other ids. Returns their number."""
    engine = learn_pieces(folder / PIECES, sentences, size, normalization)
    pieces = sorted(engine.id_to_piece(id) for id in range(3, engine.vocab_size()))
    names = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (folder / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(names)}))
    return len(names)


def padded(rows, value):
    import torch

    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def batches(pairs):
    """Yields batches of similar lengths in random order, without end."""
    while True:
        order = sorted(pairs, key=lambda pair: (max(map(len, pair)), random.random()))
        groups, group = [], []
        for pair in order:
            group.append(pair)
            if len(group) * max(map(len, pair)) >= TOKENS:
                groups.append(group)
                group = []
        random.shuffle(groups)
        yield from groups


def write_outputs(folder: Path) -> None:
    """Writes answers.json and logits.npz, the outputs of `transformers` in float64."""
    import torch
    from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

    tokenizer = M2M100Tokenizer.from_pretrained(folder, split_special_tokens=True)
    model = M2M100ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).double().eval()
    dev = [pair for pair in toy_corpus.corpus(train=0, dev=200, test=0)["dev"] if len(pair[0].split()) <= 6][:30]
    outputs = {}
    for source, target in (("en", "de"), ("de", "en")):
        sentences = [pair[source == "de"] for pair in dev]
        tokenizer.src_lang = source
        inputs = tokenizer(sentences, padding=True, return_tensors="pt")
        forced = {"forced_bos_token_id": tokenizer.get_lang_id(target), "max_length": 64, "length_penalty": 0.0}
        result = {"sentences": sentences}
        with torch.no_grad():
            for name, beams in (("greedy", 1), ("beam", 4)):
                ids = model.generate(**inputs, **forced, num_beams=beams, do_sample=False)
                result[name] = tokenizer.batch_decode(ids[:, 2:], skip_special_tokens=True)  # without the language
            scored = {"return_dict_in_generate": True, "output_scores": True}
            result["log_probs"] = model.generate(**inputs, **forced, num_beams=4, **scored).sequences_scores.tolist()
        texts = sentences + HOSTILE
        result |= {"texts": texts, "ids": tokenizer(texts)["input_ids"]}
        result["decoded"] = [tokenizer.decode(ids[1:], skip_special_tokens=True) for ids in result["ids"]]
        outputs[f"{source}-{target}"] = result
    (folder / "answers.json").write_text(json.dumps(outputs, ensure_ascii=False, indent=0), encoding="utf-8")
    target = torch.tensor([[END, tokenizer.get_lang_id("en"), *range(5, 12)]] * 5)
    inputs = {name: value[:5] for name, value in inputs.items()}
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=target).logits
    np.savez_compressed(folder / "logits.npz", target=target.numpy(), logits=logits.numpy().astype("float32"))


def main(folder: Path) -> None:
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = toy_corpus.corpus(train=9000, dev=0, test=0)["train"]
    pairs = [pair for pair in pairs if len(pair[0].split()) <= 6]
    count = write_vocabulary(folder, itertools.chain(*pairs))
    tokenizer = M2M100Tokenizer(*(str(folder / name) for name in ("vocab.json", PIECES)))
    sides = []
    for side, language in enumerate(("en", "de")):
        tokenizer.src_lang = language
        sides.append(tokenizer([pair[side] for pair in pairs])["input_ids"])
    examples = [*zip(*sides, strict=True), *zip(*reversed(sides), strict=True)]
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=count + 100 + 8, **SMALL, init_std=0.2)).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    began, losses = time.time(), []
    for step, group in enumerate(itertools.islice(batches(examples), STEPS), 1):
        source, target = zip(*group, strict=True)
        ids = padded(list(source), PADDING)
        inputs = padded([[END, *row[:-1]] for row in target], PADDING)
        logits = model(input_ids=ids, attention_mask=(ids != PADDING).int(), decoder_input_ids=inputs).logits
        labels = padded(list(target), -100)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        if step % 250 == 0:
            print(f"step {step}: loss {np.mean(losses[-250:]):.3f}, {time.time() - began:.0f} s", flush=True)
    model = model.eval().half()  # a small file, and another dtype
    for name, value in {"num_beams": 3, "max_length": 64}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.src_lang, tokenizer.tgt_lang = "en", None
    tokenizer.save_pretrained(folder)
    write_outputs(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
