#!/usr/bin/env bash
# translate-toolkit writes a new XLIFF target in front of the old one, if the old one has inline elements.
#
# Expected: unit.target = text replaces the target, as it does for a target of plain text. It reads back as text.
# Seen: the text replaces only what stood before the first inline element. Elements, the words in them and after them stay:
#       the saved file has the new translation followed by most of the old one, in the state "translated". The same holds
#       for placeholders such as <x/>, which nearly every file from a website has.
# Versions: translate-toolkit 3.20.4.
# Source: LISAunit.settarget in translate/storage/lisa.py assigns the text in front of the first child of a target that
#       exists, and leaves the children. setsource removes them.
# Met by: who translates XLIFF files again by machine, or corrects them in a script.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="translate-toolkit==3.20.4 lxml==6.1.3"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
"$environment/bin/python" - <<'END'
from translate.storage import xliff

TEXT = b"""<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file original="page" source-language="en"
target-language="de" datatype="html"><body><trans-unit id="1"><source>Hello world</source><target>Hallo Erde</target>
</trans-unit><trans-unit id="2"><source><g id="1">Hello</g> <x id="2"/>world</source>
<target><g id="1">Hallo</g> <x id="2"/>Erde</target></trans-unit></body></file></xliff>"""
store = xliff.xlifffile.parsestring(TEXT)
for unit in store.units:
    before = unit.target
    unit.target = "Guten Tag, Welt"
    print(f"{before!r} replaced by 'Guten Tag, Welt': {unit.target!r}")
plain, marked = xliff.xlifffile.parsestring(bytes(store)).units
print("saved and read again:", repr(plain.target), repr(marked.target))
assert plain.target == "Guten Tag, Welt"
assert "Guten Tag" in marked.target and "Erde" in marked.target, "targets with inline elements are replaced now"
END
