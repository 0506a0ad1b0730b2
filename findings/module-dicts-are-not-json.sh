#!/usr/bin/env bash
# A dict in an attribute of a `tf.Module` is a dict for `isinstance`, and not for `json.dumps`.
#
# Expected: `module.settings = {...}` stores a dict, and `json.dumps(module.settings)` returns its JSON.
# Seen: TensorFlow wraps the dict in a proxy. `isinstance(settings, dict)` is True, and the C encoder of `json` raises
# TypeError. With `indent`, Python 3.11 and 3.12 use an encoder in Python, which accepts it, and Python 3.13 does not.
# Versions: tensorflow-cpu 2.21.0 on Python 3.11.7 and 3.13.0.
# Source: `_DictWrapper` in tensorflow/python/trackable/data_structures.py, a `wrapt.ObjectProxy`.
# Met by: models that store settings or a vocabulary, after an upgrade to Python 3.13.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import json
import sys

import tensorflow as tf

module = tf.Module()
module.settings = {"layers": 6}


def dumps(**options):
    try:
        return json.dumps(module.settings, **options)
    except TypeError as error:
        return f"TypeError: {error}"


plain, indented = dumps(), dumps(indent=1).replace("\n", "")
print(
    f"Python {sys.version_info[0]}.{sys.version_info[1]}: isinstance {isinstance(module.settings, dict)};",
    plain,
    ";",
    indented,
)
assert isinstance(module.settings, dict) and plain.startswith("TypeError"), "json takes the proxy for a dict now"
assert indented.startswith("TypeError") == (sys.version_info >= (3, 13)), "the encoder for indents changed"
END
