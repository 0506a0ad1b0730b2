#!/usr/bin/env bash
# sacreBLEU's command cannot print a paired bootstrap of chrF or TER in its own format, JSON, with NumPy 2.
#
# Expected: the documented command prints its scores with any NumPy that the package accepts, as it does for BLEU.
# Seen: after all samples were scored, TypeError: Object of type float32 is not JSON serializable. The results are lost.
#       With numpy 1.26.4 the same command prints them. Format text prints them with both.
# Versions: sacrebleu 2.6.0 with numpy 2.4.6.
# Source: _bootstrap_resample in sacrebleu/significance.py keeps statistics in float32. CHRF and TER compute a score by
#       Python's arithmetic, which is float64 in NumPy 1 and float32 in NumPy 2 (NEP 50), and Result.ci is one of those.
# Met by: scripts that read the command's JSON, after an upgrade of NumPy. Python callers who store PairedTest's results.
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
import subprocess
import sys

lines = [f"the {color} {thing} stands near the river" for color in ("red", "blue", "green") for thing in ("door", "house")]
for name, old, new in (("references", "", ""), ("first", "stands", "stood"), ("second", "near", "by")):
    with open(name, "w") as file:
        file.writelines(line.replace(old, new) + "\n" for line in lines)
for metric, form in (("bleu", "json"), ("chrf", "text"), ("chrf", "json"), ("ter", "json")):
    command = "references -i first second --paired-bs --paired-bs-n 100".split() + ["-m", metric, "-f", form]
    run = subprocess.run([sys.executable, "-m", "sacrebleu", *command], capture_output=True, text=True)
    fails = metric != "bleu" and form == "json"
    print(f"{metric} as {form}:", (run.stderr.strip().splitlines()[-1] if run.returncode else "printed"))
    assert (run.returncode != 0) == fails, "sacreBLEU prints other formats now"
    assert not fails or "float32 is not JSON serializable" in run.stderr
END
