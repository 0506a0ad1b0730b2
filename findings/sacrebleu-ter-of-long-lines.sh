#!/usr/bin/env bash
# On long lines, sacreBLEU's TER counts many more edits than a word error rate.
#
# Expected: TER is at most the word error rate, since it counts the fewest insertions, deletions, substitutions and
# shifts. A document without its first sentence costs about the words of that sentence.
# Seen: If 30 words are missing at the beginning and there are 30 others at the end, all 230 words count as edits, not
# 60: TER is 100 instead of 26. The search for the fewest edits looks only at alignments up to 25 words from the
# diagonal. At 20 words, it is right.
# Versions: sacrebleu 2.6.0.
# Source: `_BEAM_WIDTH` and `BeamEditDistance` in sacrebleu/metrics/lib_ter.py, after Tercom.
# Met by: evaluation of documents or paragraphs as one line, where a sentence is missing or stands elsewhere.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="sacrebleu==2.6.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
from sacrebleu.metrics import TER


def fewest_edits(words, reference):
    """Returns the least number of insertions, deletions and substitutions."""
    row = list(range(len(reference) + 1))
    for i, word in enumerate(words, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(reference, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


edits = {}
for first in (20, 30):
    reference = [f"w{k}" for k in range(first + 200)]
    words = reference[first:] + [f"v{k}" for k in range(first)]
    score = TER().corpus_score([" ".join(words)], [[" ".join(reference)]])
    edits[first] = score.num_edits, fewest_edits(words, reference)
    print(f"{first} words missing before 200, {first} others after: TER {score.score:.1f}, edits {edits[first][0]}")
    print(f"    a word error rate counts {edits[first][1]}")
assert edits[20][0] <= edits[20][1], "this program counts wrongly"
assert edits[30][0] > 3 * edits[30][1], "TER finds alignments far from the diagonal now"
END
