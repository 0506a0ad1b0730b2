#!/usr/bin/env bash
# tokenizers gives the pieces of a WordPiece vocabulary other ids in each training, on the same text.
#
# Expected: no randomness is documented, and no trainer takes a seed: the same lines give the same file, as for BPE.
# Seen: hundreds of ids change from one call to the next, even in one process. On 3,000
#       lines of news 64 ids of a Unigram vocabulary change as well.
# Versions: tokenizers 0.23.3.
# Source: BpeTrainer numbers continuing pieces such as "##ing" in the order of a hash map (huggingface/tokenizers#1794, whose
#       repair, huggingface/tokenizers#2066, is open).
# Met by: who trains the tokenizer again instead of keeping its file. Checkpoints load, and their embeddings mean others.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tokenizers==0.23.3"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

choose = random.Random(1)
syllables = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "s")]
words = ["".join(choose.choices(syllables, k=choose.randint(1, 3))) for _ in range(4000)]
lines = [" ".join(choose.choices(words, weights=[1 / (rank + 5) for rank in range(4000)], k=12)) for _ in range(3000)]
kinds = {"BPE": (models.BPE, trainers.BpeTrainer), "WordPiece": (models.WordPiece, trainers.WordPieceTrainer)}
for kind, (model, trainer) in kinds.items():
    ids = []
    for _ in range(3):
        tokenizer = Tokenizer(model(unk_token="?"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        options = {"vocab_size": 2000, "special_tokens": ["?"], "show_progress": False}
        tokenizer.train_from_iterator(lines, trainer(**options))
        ids.append(tokenizer.get_vocab())
    counts = [sum(first.get(piece) != id for piece, id in second.items()) for first, second in zip(ids, ids[1:])]
    print(f"{kind}: {counts} of {len(ids[0])} ids differ from the training before")
    assert (max(counts) == 0) == (kind == "BPE"), "trainings repeat in another way now"
END
