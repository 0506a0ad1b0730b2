#!/usr/bin/env bash
# torchmetrics' TER exchanges translation and reference: an empty translation scores a perfect 0.
#
# Expected: TranslationEditRate equals sacreBLEU's TER, which its docs name as the implementation that it follows.
# Seen: an empty translation has 0 edits, where sacreBLEU counts a deletion of every word. Sentences with moved words
#       differ in both directions: 16 of 500 captions with three random edits.
# Versions: torchmetrics 1.9.0, beside sacrebleu 2.6.0.
# Source: _compute_sentence_statistics in torchmetrics/functional/text/ter.py calls _translation_edit_rate(reference,
#       translation). Levenshtein's distance is symmetric, but the search for shifts and the case of an empty text are
#       not. Lightning-AI/torchmetrics#3478, whose repair is not in 1.9.0.
# Met by: who validates by torchmetrics, in particular early in a training, when outputs are empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
# One environment for all findings with PyTorch, which takes 6 GB.
packages="transformers==5.24.0 torch==2.14.1 accelerate==1.15.0 pymarian==1.12.42 torchmetrics==1.9.0 sacrebleu==2.6.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
from sacrebleu.metrics import TER
from torchmetrics.text import TranslationEditRate

pairs = [
    ("", "the old house near the river"),
    ("drei hunde auf strand. einem spielen", "drei hunde spielen auf einem strand."),
    ("eine auf schöne spielt frau einer", "eine schöne frau spielt auf einer harfe."),
    ("drei hunde spielen", "drei hunde spielen auf einem strand."),
]
for output, reference in pairs:
    ours = 100 * TranslationEditRate()([output], [[reference]]).item()
    sacre = TER().sentence_score(output, [reference]).score
    print(f"{output!r}: torchmetrics {ours:.1f}, sacreBLEU {sacre:.1f}")
    assert (abs(ours - sacre) < 0.1) == (output == "drei hunde spielen"), "torchmetrics counts in another way now"
END
