#!/usr/bin/env bash
# tensorflow-datasets imports `importlib_resources`, which it requires only for Python before 3.9.
#
# Expected: After `pip install tensorflow-datasets`, a dataset that is defined in a package builds.
# Seen: Its import is lazy and first used when a builder's code is looked up in a package. `import
# tensorflow_datasets` works, and each builder in a module of a package raises ModuleNotFoundError.
# Versions: tensorflow-datasets 4.9.10, tensorflow-cpu 2.21.0.
# Source: `DatasetBuilder.code_path` and the lazy imports in tensorflow_datasets/core/dataset_builder.py;
# tensorflow/datasets#11212.
# Met by: users in a fresh environment, where no other package requires it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="tensorflow-cpu==2.21.0 keras==3.15.1 tensorflow-datasets==4.9.10"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
export TF_CPP_MIN_LOG_LEVEL=3
"$environment/bin/python" - <<'END'
import importlib
import pathlib
import sys

pathlib.Path("mine").mkdir()
pathlib.Path("mine/__init__.py").touch()
pathlib.Path("mine/numbers.py").write_text(
    """import numpy as np
import tensorflow_datasets as tfds


class Counted(tfds.core.GeneratorBasedBuilder):
    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({"number": np.int32}))

    def _split_generators(self, manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"number": 7}
"""
)
sys.path.insert(0, ".")
numbers = importlib.import_module("mine.numbers")
print("the import works")
try:
    print(numbers.Counted.code_path)
except ModuleNotFoundError as error:
    print("the path of a builder's code raises ModuleNotFoundError:", error)
    assert error.name == "importlib_resources" or "importlib_resources" in str(error), error
else:
    raise SystemExit("a builder needs no importlib_resources, or something requires it now")
END
