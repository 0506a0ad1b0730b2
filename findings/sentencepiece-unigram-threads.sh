#!/usr/bin/env bash
# SentencePiece learns another unigram vocabulary with another number of threads.
#
# Expected: threads change the time, and the same text gives the same pieces. So it is for kind "bpe", and shuffled lines
#       give the same pieces for both kinds.
# Seen: ids differ, since scores do and their order numbers the pieces. On 12,000 lines of news 22 of 4,000 pieces differ as
#       well. The default is 16, so machines agree until somebody sets num_threads to the number of their cores.
# Versions: sentencepiece 0.2.3.
# Source: Trainer::RunEStep in unigram_model_trainer.cc adds up expected counts by thread, in float, and pruning and EM
#       continue from sums in another order.
# Met by: who trains a vocabulary again to reproduce a run on another machine: its checkpoints then mean other pieces.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="sentencepiece==0.2.3"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import io
import random

import sentencepiece

choose = random.Random(1)
starts = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "ch", "st", "tr", "")
syllables = [start + end for start in starts for end in ("a", "e", "i", "o", "u", "en", "er", "ung", "an", "ei")]
choose.shuffle(syllables)
weights = [1 / (rank + 1) for rank in range(len(syllables))]
words = ["".join(choose.choices(syllables, weights=weights, k=choose.randint(2, 5))) for _ in range(8000)]
lines = [" ".join(choose.choices(words, weights=[1 / (rank + 3) for rank in range(8000)], k=12)) for _ in range(8000)]


def pieces(kind, threads):
    written, options = io.BytesIO(), {"vocab_size": 2000, "model_type": kind, "minloglevel": 2, "num_threads": threads}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=written, **options)
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return [model.id_to_piece(id) for id in range(len(model))]


for kind in ("bpe", "unigram"):
    one, moved = pieces(kind, 1), {}
    assert one == pieces(kind, 1)
    for threads in (2, 16):
        moved[threads] = sum(a != b for a, b in zip(one, pieces(kind, threads)))
        print(f"{kind}: {moved[threads]} of {len(one)} ids differ between 1 and {threads} threads")
    assert any(moved.values()) == (kind == "unigram"), "threads have another effect now"
END
