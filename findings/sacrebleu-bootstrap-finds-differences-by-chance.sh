#!/usr/bin/env bash
# sacreBLEU's paired bootstrap calls one in nine differences between equally good systems significant at p < 0.05.
#
# Expected: With p < 0.05, one in twenty comparisons of equally good systems is significant by chance.
# Seen: The test takes absolute differences before it subtracts their mean, which narrows them. Its p-values never
# exceed about 0.45, and are about half of those of a two-sided test such as the approximate randomization (`ar`), so
# about one comparison in nine is significant by chance.
# Versions: sacrebleu 2.6.0.
# Source: `_paired_bs_test` in sacrebleu/significance.py (`sample_diffs = np.abs(...)`, then `sample_diffs -
# sample_diffs.mean()`).
# Met by: papers and model selection by `--paired bs`.
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
import logging

import numpy as np
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

logging.getLogger("sacrebleu").setLevel(logging.ERROR)
generator = np.random.default_rng(1)
words = [f"w{n}" for n in range(500)]


def noisy(text):
    """Replaces a quarter of the words by chance: all outputs of it are equally good."""
    return " ".join(word if generator.random() > 0.25 else generator.choice(words) for word in text.split())


values = {"bs": [], "ar": []}
for _ in range(60):
    references = [" ".join(generator.choice(words, generator.integers(5, 25))) for _ in range(60)]
    systems = [(name, [noisy(text) for text in references]) for name in ("one", "other")]
    for kind in values:
        _, results = PairedTest(systems, {"BLEU": BLEU()}, [references], kind, 200)()
        values[kind].append(results["BLEU"][1].p_value)
bootstrap, randomization = (np.array(values[kind]) for kind in ("bs", "ar"))
for name, p in (("paired bootstrap", bootstrap), ("approximate randomization", randomization)):
    print(f"{name}: p < 0.05 in {np.mean(p < 0.05):.0%}; median of p {np.median(p):.2f}, maximum {p.max():.2f}")
assert randomization.max() > 0.9 and np.median(randomization) > 0.35, "the randomization test has other p-values"
assert bootstrap.max() < 0.6 and np.median(bootstrap / randomization) < 0.6, "the bootstrap has p-values up to 1 now"
assert np.mean(bootstrap < 0.05) > np.mean(randomization < 0.05), "it finds as few differences as the randomization"
END
