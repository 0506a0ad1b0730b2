#!/usr/bin/env bash
# sacreBLEU's paired tests call a system significantly different from itself.
#
# Expected: two systems with the same outputs have a p-value near 1, since any difference is as large as theirs, none.
# Seen: paired bootstrap and approximate randomization print the smallest p-value that there is, 1 / (samples + 1), and
#       the table of the command marks it as significant with an asterisk.
# Versions: sacrebleu 2.6.0 (2.0.0 as well).
# Source: _compute_p_value in sacrebleu/significance.py counts samples whose difference is strictly greater than the real
#       one. With equal statistics both are 0, so it counts none.
# Met by: who compares two checkpoints, engines or search options that happen to agree on a test set, and BLEU without
#       case for systems that differ in case alone.
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
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

references = [f"The {color} {thing} stands near the old {place} ." for color in ("red", "blue", "green", "white")
              for thing in ("door", "house", "horse", "tower") for place in ("river", "market", "bridge")]
outputs = [text.replace("near", "by") for text in references]
for kind in ("bs", "ar"):
    systems = [("first", outputs), ("the same", list(outputs))]
    _, results = PairedTest(systems, {"BLEU": BLEU(), "chrF": CHRF()}, [references], kind, 1000)()
    for metric in ("BLEU", "chrF2"):
        first, same = results[metric]
        print(f"{kind} {metric}: {first.score:.2f} and {same.score:.2f}, p = {same.p_value:.4f}")
        assert first.score == same.score
        assert same.p_value < 0.05, "identical systems are no longer significantly different"
END
