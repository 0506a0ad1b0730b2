#!/usr/bin/env bash
# Since version 3.10, nltk takes a bracket after a backslash for a part of the word, so trees of 3.9 raise.
#
# Expected: A minor release reads the treebanks that the former one read. Brackets in words are escaped as -LRB- and
# -RRB-.
# Seen: nltk 3.9.1 reads `(NN a\)` as the word `a\`. In 3.10.4, the bracket belongs to the word, and the tree has no
# end: ValueError.
# Versions: nltk 3.10.4, after 3.9.1.
# Source: `Tree.fromstring` in nltk/tree/tree.py, whose pattern of a token has escaped brackets.
# Met by: treebanks of texts with backslashes, such as paths or LaTeX, after an upgrade.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="nltk==3.10.4"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import nltk

tree = "(S (NN a\\) (NN b))"
try:
    result = nltk.Tree.fromstring(tree).leaves()
except ValueError as error:
    result = "ValueError: " + " ".join(str(error).split())[:60]
print(f"nltk {nltk.__version__} reads {tree} as {result}")
assert "ValueError" in result, "the bracket ends the word again"
END
