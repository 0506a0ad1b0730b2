#!/usr/bin/env bash
# No tokenizer of sacreBLEU's BLEU but `char` and the SentencePiece ones splits Thai, and an almost right output has
# BLEU 0.
#
# Expected: `intl` splits by Unicode categories, and `zh` splits characters of scripts without spaces, so a
# translation with one wrong word has a high BLEU.
# Seen: `13a`, `intl` and `zh` make one token of a Thai sentence without spaces. It has no 4-gram, and one wrong word
# makes the only token wrong. `char` returns 85.8 for the same output. Lao, Khmer and Burmese are alike.
# Versions: sacrebleu 2.6.0.
# Source: `Tokenizer13a`, `TokenizerV14International` and `TokenizerZh` in sacrebleu/tokenizers/.
# Met by: multilingual models: the mean over languages is spoiled by some zeros.
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

reference, output = "ฉันชอบอ่านหนังสือในห้องสมุดทุกวัน", "ฉันชอบอ่านหนังสือในห้องสมุดทุกเดือน"  # every day, every month
got = {
    name: BLEU(tokenize=name).corpus_score([output] * 10, [[reference] * 10]).score
    for name in ("13a", "intl", "zh", "char")
}
chrf = CHRF().corpus_score([output] * 10, [[reference] * 10]).score
print("BLEU by tokenizer:", {name: round(score, 1) for name, score in got.items()}, "; chrF", round(chrf, 1))
assert got["char"] > 80 and chrf > 80, "the output is not almost right"
assert got["13a"] == got["intl"] == got["zh"] == 0, "a tokenizer splits Thai now"
END
