#!/usr/bin/env bash
# NLTK's corpus BLEU of a text against itself is below 1 if some lines have fewer than four words.
#
# Expected: corpus BLEU sums n-grams over the corpus, and a line without 4-grams adds none. Equal texts score 1.
# Seen: each line of one to three words adds a 4-gram that cannot match, so subtitles or dialogues score far too low. The
#       score of one and the same output falls with the share of short lines, whatever their quality.
# Versions: nltk 3.10.4 (3.8.1 as well), beside sacrebleu 2.6.0.
# Source: modified_precision in nltk/translate/bleu_score.py: each line's denominator is at least 1, against divisions
#       by zero, before corpus_bleu adds the lines up.
# Met by: who scores short sentences by nltk, or compares its corpus_bleu with sacreBLEU on the same tokens.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="nltk==3.10.4 sacrebleu==2.6.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
from nltk.translate.bleu_score import corpus_bleu
from sacrebleu.metrics import BLEU

long = ["the old house stands near the river today", "she reads a long letter in the garden"]
short = ["good morning !", "come in .", "thank you !", "yes .", "who is there ?", "wait !"]
for lines in (long, long + short):
    words = [line.split() for line in lines]
    nltk = 100 * corpus_bleu([[line] for line in words], words)
    sacre = BLEU(tokenize="none", force=True).corpus_score(lines, [lines]).score
    print(f"{len(lines)} lines against themselves: nltk {nltk:.2f}, sacreBLEU {sacre:.2f}")
    assert abs(sacre - 100) < 1e-6
    assert (nltk > 99.99) == (lines is long), "nltk counts short lines in another way now"
assert nltk < 95
END
