#!/usr/bin/env bash
# sacreBLEU's paired tests return the smallest possible p-value for two systems with equal outputs.
#
# Expected: If two systems have the same score in every sample, there is no evidence of a difference: p is 1.
# Seen: The tests count the samples with a greater difference than the real one, which is 0. None is, so p is 1 /
# (samples + 1), 0.001 with 1,000 samples.
# Versions: sacrebleu 2.6.0.
# Source: `_compute_p_value` in sacrebleu/significance.py (`>`, not `>=`).
# Met by: comparisons of two exports of one model, or of an option that changes nothing.
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
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

references = [f"this is sentence number {n} of the test set." for n in range(100)]
outputs = [text.replace("sentence", "line") if n % 3 else text for n, text in enumerate(references)]
for kind in ("bs", "ar"):
    _, results = PairedTest([("one", outputs), ("other", list(outputs))], {"BLEU": BLEU()}, [references], kind, 200)()
    first, second = results["BLEU"]
    print(f"{kind}: BLEU {first.score:.2f} and {second.score:.2f}, p = {second.p_value:.4f}")
    assert first.score == second.score
    assert abs(second.p_value - 1 / 201) < 1e-9, "equal outputs have another p-value now"
END
