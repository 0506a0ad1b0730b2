"""Trains a MarianMT checkpoint on the toy corpus with Hugging Face's `transformers` in PyTorch, and writes its outputs.

    pip install torch "transformers<6" && python tests/marian/train.py tests/marian/trained

The one here is by transformers 5.24.0 and torch 2.13.0, of other sentences of the same grammar (seed 0). It translates
to German, and copies a text after ">>eng<<".
"""

import itertools
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from tf_transformer.data import toy_corpus

CODES = (">>deu<<", ">>eng<<")
STEPS, TOKENS, RATE, WIDTH = 8000, 2000, 3e-3, 36
HOSTILE = [">>fra<< Good morning.", ">>eng<<Two", ">> eng << x", " >>eng<< x", ">>eng<< >>deu<< x", ">><<", ">>"]
HOSTILE += [">>eng<", ">>a\nb<<c", "x >>eng<< y", "</s>", ">></s><<a", "<unk> a", "a <pad>", "<s> ▁ ▁▁a", "", "   "]
HOSTILE += ["\u2047 \ufffd <0x41>", "\x00\x01", "</s> <pad> <unk>", "東京 😀", "door " * 300, "e\u0301\ufb01"]
HOSTILE += ["a\tb\nc\u00a0d\u3000e\u2003f"]


def training_pairs() -> list[tuple[str, str]]:
    pairs = toy_corpus.corpus(train=9000, dev=0, test=0)["train"]
    pairs = [(english, german) for english, german in pairs if len(english.split()) <= 6]
    of_code = [(f">>deu<< {english}", german) for english, german in pairs[::2]]
    of_code += [(f">>eng<< {english}", english) for english, _ in pairs]
    return pairs + of_code


def train_tokenizer(folder: Path, pairs) -> MarianTokenizer:
    """source.spm, target.spm and vocab.json: end, unknown, the pieces of both, padding."""
    vocabulary = ["</s>", "<unk>", *CODES]
    for name, sentences in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        plain = [text.split("<< ")[-1] for text in sentences]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(plain),
            model_prefix=str(folder / name),
            vocab_size=250,
            normalization_rule_name="identity",  # the file is 240 KB smaller
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{name}.vocab").unlink()
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        pieces = [engine.id_to_piece(id) for id in range(engine.vocab_size())]
        vocabulary += [piece for piece in pieces if piece not in vocabulary and piece != "<s>"]
    vocabulary.append("<pad>")
    (folder / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(vocabulary)}))
    return MarianTokenizer(*(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")))


def batches(source, target):
    """Yields batches of similar lengths in random order, without end."""
    while True:
        order = sorted(range(len(source)), key=lambda i: (len(source[i]) + len(target[i]), random.random()))
        groups, group = [], []
        for i in order:
            group.append(i)
            if len(group) * max(len(source[i]), len(target[i])) >= TOKENS:
                groups.append(group)
                group = []
        random.shuffle(groups)
        for group in groups:
            yield [source[i] for i in group], [target[i] for i in group]


def padded(rows, value):
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def write_outputs(folder: Path) -> None:
    """Writes answers.json, the outputs of `transformers` in float64."""
    tokenizer = MarianTokenizer.from_pretrained(folder, split_special_tokens=True)
    model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).double().eval()  # sinusoids are in that dtype
    pairs = [pair for pair in toy_corpus.corpus(train=0, dev=200, test=0)["dev"] if len(pair[0].split()) <= 6]
    sentences = [f"{('', *CODES)[i % 3]} {english}" for i, (english, _) in enumerate(pairs[:45])]
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    outputs: dict[str, object] = {"sentences": sentences}
    with torch.no_grad():
        for name, beams in (("greedy", 1), ("beam", 4)):
            ids = model.generate(**inputs, num_beams=beams, length_penalty=0.0, max_length=128)
            outputs[name] = tokenizer.batch_decode(ids, skip_special_tokens=True)
        scored = {"return_dict_in_generate": True, "output_scores": True}
        generated = model.generate(**inputs, num_beams=4, length_penalty=0.0, max_length=128, **scored)
    outputs["log_probs"] = generated.sequences_scores.tolist()
    texts = [*sentences, *HOSTILE, *(german for _, german in pairs)]
    outputs["texts"] = texts
    outputs["source_ids"] = tokenizer(texts)["input_ids"]
    outputs["target_ids"] = tokenizer(text_target=texts)["input_ids"]
    for side in ("source", "target"):
        outputs[f"of_{side}"] = tokenizer.batch_decode(outputs[f"{side}_ids"], skip_special_tokens=True)
    (folder / "answers.json").write_text(json.dumps(outputs, ensure_ascii=False, indent=0), encoding="utf-8")


def main(folder: Path) -> None:
    random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = training_pairs()
    tokenizer = train_tokenizer(folder, pairs)
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    config = MarianConfig(
        vocab_size=len(tokenizer.encoder),
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=3 * WIDTH,
        activation_function="swish",
        scale_embedding=True,
        max_position_embeddings=512,
        init_std=WIDTH**-0.5,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=end,
        forced_eos_token_id=end,
    )
    model = MarianMTModel(config).train()
    source = tokenizer([source for source, _ in pairs])["input_ids"]
    target = tokenizer(text_target=[target for _, target in pairs])["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, STEPS, pct_start=0.1)
    began, losses = time.time(), []
    data = itertools.islice(batches(source, target), STEPS)
    for step, (sources, targets) in enumerate(data, 1):
        ids = padded(sources, pad)
        logits = model(
            input_ids=ids,
            attention_mask=(ids != pad).int(),
            decoder_input_ids=padded([[pad, *row[:-1]] for row in targets], pad),
        ).logits
        labels = padded(targets, -100)
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
    generation = {"bad_words_ids": [[pad]], "renormalize_logits": True, "num_beams": 3, "max_length": 128}
    for name, value in generation.items():  # OPUS-MT's settings
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_outputs(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
