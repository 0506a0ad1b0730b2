#!/usr/bin/env bash
# BPE-dropout with probability 0.1 splits words almost twice as often in SentencePiece as in its paper, and half as
# often in tokenizers.
#
# Expected: Equal merges and an equal probability have equal distributions of segmentations. A comment in the source of
# SentencePiece calls its loop equivalent to the paper's.
# Seen: In the paper's algorithm (arXiv:1910.13267), each step drops merges anew. SentencePiece removes a dropped merge
# for good, so 0.1 adds 69 % pieces here, where the paper's adds 34 %. tokenizers returns dropped merges to its queue,
# also when it meets a merge that is out of date, so it adds 19 %. Without dropout, all three segment alike.
# Versions: sentencepiece 0.2.3, tokenizers 0.23.3.
# Source: `Model::SampleEncode` in src/bpe_model.cc of google/sentencepiece; `Word::merge_all` in
# tokenizers/src/models/bpe/word.rs of huggingface/tokenizers.
# Met by: those who take a probability from a paper or another toolkit, such as 0.1 of subword-nmt.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="sentencepiece==0.2.3 tokenizers==0.23.3"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import random

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers

random.seed(0)
syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
words = ["".join(random.choices(syllables, k=random.choice([1, 2, 2, 3, 3, 4]))) for _ in range(3000)]
lines = [" ".join(random.choices(words, [1 / (k + 1) for k in range(3000)], k=12)) for _ in range(4000)]
with open("lines.txt", "w") as file:
    file.write("\n".join(lines))
options = {"model_type": "bpe", "vocab_size": 1500, "character_coverage": 1.0, "minloglevel": 2}
sentencepiece.SentencePieceTrainer.train(input="lines.txt", model_prefix="bpe", **options)
processor = sentencepiece.SentencePieceProcessor(model_file="bpe.model")
ranks = {processor.id_to_piece(k): k for k in range(processor.get_piece_size())}
# SentencePiece merges two pieces if their concatenation is a piece, in the order of ids.
splits = [(piece[:k], piece[k:]) for piece in list(ranks)[3:] for k in range(1, len(piece))]
merges = [(left, right) for left, right in splits if left in ranks and right in ranks]
places = {pair: ranks["".join(pair)] for pair in merges}


def paper(word, probability):
    """Algorithm 1 of BPE-dropout."""
    symbols = list(word)
    while True:
        pairs = enumerate(zip(symbols, symbols[1:]))
        kept = [(places[pair], k) for k, pair in pairs if pair in places and random.random() >= probability]
        if not kept:
            return symbols
        k = min(kept)[1]
        symbols[k : k + 2] = [symbols[k] + symbols[k + 1]]


def hugging_face(probability):
    tokenizer = Tokenizer(models.BPE(ranks, merges, dropout=probability or None, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return [encoding.tokens for encoding in tokenizer.encode_batch(lines[:500])]


def in_paper(probability):
    return [[piece for word in line.split() for piece in paper("▁" + word, probability)] for line in lines[:500]]


def sentence_piece(probability):
    sampled = {"enable_sampling": True, "alpha": probability, "nbest_size": -1} if probability else {}
    return [processor.encode(line, out_type=str, **sampled) for line in lines[:500]]


plain = in_paper(0)
assert plain == sentence_piece(0) == hugging_face(0), "the merges differ, so this program measures something else"
added = {}
for probability in (0.1, 0.3):
    for name, encode in (("paper", in_paper), ("SentencePiece", sentence_piece), ("tokenizers", hugging_face)):
        pieces = sum(map(len, encode(probability))) / sum(map(len, plain))
        added[name] = pieces - 1
        print(f"dropout {probability}, {name}: {added[name]:.0%} more pieces")
    assert added["SentencePiece"] > 1.3 * added["paper"], "SentencePiece drops merges as in the paper now"
    assert added["tokenizers"] < 0.8 * added["paper"], "tokenizers drops merges as in the paper now"
END
