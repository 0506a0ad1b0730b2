#!/usr/bin/env bash
# pysubs2 deletes what stands between "<" and ">" in subtitles, over lines as well, and bold text loses its tags.
#
# Expected: tags such as <font> are read or dropped, and other text is kept: "<" is a character of .srt like any other.
# Seen: "if x <y and y> z" is "if x  z". A "<" before a letter swallows all up to the next ">", which may be on the next
#       line of the caption, with the words between. <i>, <u> and <s> survive from .srt to .srt, <b> and <font> do not.
# Versions: pysubs2 1.8.1.
# Source: prepare_text of SubripFormat.from_file in pysubs2/formats/subrip.py has one expression for all other tags, which
#       crosses lines. prepare_text of to_file has no case for bold.
# Met by: lectures and films about programming or mathematics, chats quoted as <Name>, and names of speakers in brackets.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="pysubs2==1.8.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import pysubs2

captions = {
    "comparison": "if x <y and y> z, stop",
    "speaker": "<Anna> Where are you?",
    "two lines": "a <b means less\nand c> d means more",
    "spaces": "1 < 2 and 3 > 2",
    "italics": "<i>now</i>",
    "bold": "<b>now</b>",
}
text = "".join(f"{n}\n00:00:{n:02},000 --> 00:00:{n:02},900\n{caption}\n\n" for n, caption in enumerate(captions.values(), 1))
written = pysubs2.SSAFile.from_string(pysubs2.SSAFile.from_string(text).to_string("srt"))
again = pysubs2.SSAFile.from_string(text).to_string("srt").strip().split("\n\n")
kept = {name: block.split("\n", 2)[2] for name, block in zip(captions, again)}
for name, caption in captions.items():
    print(f"{name}: {caption!r} is {kept[name]!r}")
lost = {name for name, caption in captions.items() if kept[name].split() != caption.split()}
assert lost == {"comparison", "speaker", "two lines", "bold"}, "pysubs2 keeps other text now"
assert "less" not in kept["two lines"] and kept["bold"] == "now"
END
