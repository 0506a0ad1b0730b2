#!/usr/bin/env bash
# rouge-score compares only the letters a to z and digits, so that two Russian texts with equal numbers have ROUGE 1, and
# equal ones without numbers have 0.
#
# Expected: ROUGE of a text against itself is 1, and that of texts without a common word is 0, in any script. The
# package lowercases and splits Unicode text without an error.
# Seen: All other characters are removed. Russian, Greek and Chinese have no words but numbers and names in Latin
# letters. A letter with an accent splits a German or French word: "Häuser" and "Höuser" are equal.
# Versions: rouge-score 0.1.2.
# Source: `tokenize` in rouge_score/tokenize.py, huggingface/evaluate#256. `RougeScorer(tokenizer=)` takes another one.
# Met by: summaries or titles in other languages than English, with libraries that call rouge-score as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="rouge-score==0.1.2"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
from rouge_score.rouge_scorer import RougeScorer


class Words:
    def tokenize(self, text):
        return text.lower().split()


GREETING = "Привет, как дела сегодня"  # Hello, how are you today
DEATHS, PRICES = "в 2019 году погибло 5 человек", "цена выросла на 5 процентов в 2019"  # five people died, prices rose
stock, words = RougeScorer(["rouge1"]), RougeScorer(["rouge1"], tokenizer=Words())
got = {}
for name, reference, output in (
    ("itself", GREETING, GREETING),
    ("another text with equal numbers", DEATHS, PRICES),
    ("a German word that is misspelled", "die Häuser", "die Höuser"),
):
    got[name] = [scorer.score(reference, output)["rouge1"].fmeasure for scorer in (stock, words)]
    print(f"{name}: ROUGE-1 {got[name][0]:.2f}, of words between spaces {got[name][1]:.2f}")
assert got["itself"] == [0.0, 1.0], "Russian has words now"
assert got["another text with equal numbers"][0] == 1.0, "Russian words count now"
assert got["a German word that is misspelled"] == [1.0, 0.5], "letters with accents count now"
END
