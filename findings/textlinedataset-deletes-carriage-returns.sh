#!/usr/bin/env bash
# tf.data.TextLineDataset deletes all carriage returns, also those inside a line.
#
# Expected: A line ends at "\n", and "\r" before it belongs to the end. Inside a line, "\r" stays, as in
# `open(newline="\n")`, or ends the line, as in `open()`.
# Seen: "one\rtwo" is read as "onetwo": the two words around it become one.
# Versions: tensorflow-cpu 2.21.0.
# Source: `BufferedInputStream::ReadLineHelper` in xla/tsl/lib/io/buffered_inputstream.cc of openxla/xla.
# Met by: those who train on crawled or extracted text, which has carriage returns inside of sentences. Reading by
# Python gives another number of lines, or other words.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
"$environment/bin/python" - <<'END'
import tensorflow as tf

with open("lines.txt", "wb") as file:
    file.write(b"one\rtwo three\r\nfour\n")
with open("lines.txt", newline="\n") as file:
    exact = [line.rstrip("\r\n") for line in file]
with open("lines.txt") as file:
    universal = [line.rstrip("\n") for line in file]
read = [line.decode() for line in tf.data.TextLineDataset("lines.txt").as_numpy_iterator()]
print("Python, newline='\\n':", exact)
print("Python:", universal)
print("TextLineDataset:", read)
assert (exact, universal) == (["one\rtwo three", "four"], ["one", "two three", "four"]), "Python reads other lines"
assert read == ["onetwo three", "four"], "carriage returns inside of a line are no longer deleted"
END
