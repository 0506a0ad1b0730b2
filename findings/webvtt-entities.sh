#!/usr/bin/env bash
# webvtt-py neither reads nor writes the entities of WebVTT: "&lt;" stays in the text, and "<" in a text loses words.
#
# Expected: caption.text, the text without tags, is what a viewer sees, and assigning a text shows that text.
# Seen: "Tom &amp; Anna" stays as it is spelled in the file, so a translator gets "&amp;" as words. A text with "<" is
#       written as it is. Whoever reads the file again, as webvtt-py does here, takes it for a tag and drops the words
#       up to the next ">".
# Versions: webvtt-py 0.6.0.
# Source: Caption.text and its setter in webvtt/models.py strip tags and split lines, without html.unescape and escape.
# Met by: who translates .vtt files with ampersands, which the format requires to be escaped.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="webvtt-py==0.6.0"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
import io

import webvtt

SOURCE = "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\nTom &amp; Anna: <i>1 &lt; 2</i>\n"


def written(captions):
    stream = io.StringIO()
    captions.write(stream)
    return stream.getvalue()


captions = webvtt.from_string(SOURCE)
print("read:", repr(captions[0].text))
assert captions[0].text == "Tom &amp; Anna: 1 &lt; 2", "entities are read now"
captions[0].text = "Is x <y & y> z?"
text = written(captions)
print("written:", repr(text.splitlines()[-1]), "read again:", repr(webvtt.from_string(text)[0].text))
assert "x <y & y> z" in text, "texts are escaped now"
assert webvtt.from_string(text)[0].text == "Is x  z?"
END
