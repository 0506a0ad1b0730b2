#!/usr/bin/env bash
# transformers 5 reads a SentencePiece model's pieces and ignores its kind and rules: T5Tokenizer segments BPE as unigram.
#
# Expected: a tokenizer that opens spiece.model gives SentencePiece's ids, or refuses the model.
# Seen: T5Tokenizer and XLMRobertaTokenizer give other pieces for a model of kind "bpe", on 98 of 100 lines of news. Bytes of
#       models with byte_fallback are never used, so what SentencePiece spells becomes <unk>. add_dummy_prefix=False and
#       treat_whitespace_as_suffix=True change nothing. No warning, and every id is valid.
# Versions: transformers 5.24.0 with sentencepiece 0.2.3. In 4.57.1, T5Tokenizer gives SentencePiece's ids in all five cases.
# Source: T5Tokenizer.__init__ in transformers/models/t5/tokenization_t5.py builds tokenizers.models.Unigram with unk_id=2 and
#       byte_fallback=False, whatever the model is. Only scores, pieces and the normalizer's table are read from it.
# Met by: T5 and XLM-R models with vocabularies of their own, after an upgrade from version 4: ids differ from training's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="transformers==5.24.0 sentencepiece==0.2.3 protobuf==7.36.2 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import io
import random
import shutil
from pathlib import Path

import sentencepiece
from transformers import T5Tokenizer

choose = random.Random(1)
syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")]
words = ["".join(choose.choices(syllables, k=choose.randint(1, 3))) for _ in range(2000)]
lines = [" ".join(choose.choices(words, weights=[1 / (rank + 5) for rank in range(2000)], k=12)) for _ in range(2000)]
tested = [*lines[:300], "ba 2 x"]  # with characters that are in no line
cases = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "bytes": {"byte_fallback": True, "vocab_size": 700},
    "no prefix": {"add_dummy_prefix": False},
    "suffix": {"treat_whitespace_as_suffix": True},
}
other = {}
for name, case in cases.items():
    written = io.BytesIO()
    options = {"vocab_size": 600, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2} | case
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=written, num_threads=1, **options)
    shutil.rmtree(name, ignore_errors=True)
    Path(name).mkdir()
    Path(name, "spiece.model").write_bytes(written.getvalue())
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    ids = T5Tokenizer.from_pretrained(name)(tested, add_special_tokens=False)["input_ids"]
    pairs = [(a, b) for a, b in zip(model.encode(tested), ids) if a != b]
    other[name] = len(pairs)
    print(f"{name}: other ids for {len(pairs)} of {len(tested)} lines")
    for a, b in pairs[-1:]:
        print("    SentencePiece", model.id_to_piece(a)[:9], "T5Tokenizer", model.id_to_piece(b)[:9])
assert other["unigram"] == 0
assert other["bpe"] > 200 and other["bytes"] > 0, "kinds and bytes are read now"
assert other["no prefix"] == other["suffix"] == len(tested), "rules for spaces are read now"
END
