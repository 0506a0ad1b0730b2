#!/usr/bin/env bash
# litert-converter converts a loop to LiteRT's operations, but cannot write it to a file.
#
# Expected: What the converter turns into operations of LiteRT can be written. `tf.lite` writes loops, and the package
# is to take its place.
# Seen: A `stablehlo.while` becomes a `tfl.while`. The export then raises "Failed to export flatbuffer: ", without a
# reason. The same operations without the loop are written. The writer takes loops whose condition and body are calls of
# functions. The package does not run the pass that makes them, and does not register it under a name.
# Versions: litert-converter 0.5.0.
# Source: `BuildWhileOperator` in tensorflow/compiler/mlir/lite/flatbuffer_export.cc; `CreateWhileOutlinePass` is in
# the passes of `tf.lite`.
# Met by: exports of recurrent layers or of a search from JAX or TensorFlow, once `tf.lite` has left TensorFlow.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# FINDINGS_ENVIRONMENTS, if set, keeps environments between runs.
packages="litert-converter==0.5.0 numpy==2.4.6"
environment=${FINDINGS_ENVIRONMENTS:-$folder}/$(echo "$packages" | md5sum | cut -c1-12)
[ -x "$environment/bin/python" ] || "${PYTHON:-python3}" -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check --no-compile $packages
cd "$folder"
cat > run.py <<'END'
import litert_converter  # loads the libraries of the modules below
from litert_converter import converter_api_ext
from litert_converter.mlir import ir, passmanager

STRAIGHT = """
    %y = stablehlo.tanh %x : tensor<4xf32>
    return %y : tensor<4xf32>"""
LOOP = """
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %three = stablehlo.constant dense<3> : tensor<i32>
    %end:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<4xf32>
    cond {
      %more = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.tanh %y : tensor<4xf32>
      stablehlo.return %next, %z : tensor<i32>, tensor<4xf32>
    }
    return %end#1 : tensor<4xf32>"""


def convert(body):
    """Returns the converted module as text, and the bytes of the file or the error's message."""
    context = ir.Context()
    converter_api_ext.prepare_mlir_context(context)
    with context:
        module = ir.Module.parse("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {" + body + "}")
        config = converter_api_ext.ConvertToTFLConfig()
        converter_api_ext.run_convert_to_tfl_passes(module, passmanager.PassManager(), config)
        try:
            return str(module), len(converter_api_ext.export_flatbuffer_to_bytes(module.operation))
        except ValueError as error:
            return str(module), str(error)


(straight, size), (loop, message) = convert(STRAIGHT), convert(LOOP)
print(f"without a loop: {size} bytes")
print(f"a loop: {message!r}")
assert "stablehlo" not in straight + loop and "tfl.while" in loop, "the conversion stops earlier now"
assert isinstance(size, int), "nothing is written now, so this program calls the converter wrongly"
assert isinstance(message, str), "loops are written now"
END
"$environment/bin/python" run.py 2> log || { tail -3 log; exit 1; }
