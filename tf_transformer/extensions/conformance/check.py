"""Checks a SavedModel for everything that would fail in TensorFlow Serving, without the server, or another export:

    python -m tf_transformer.extensions.conformance.check savedmodels/demo/1

reads the graph, opens it in a Python process, calls it in another process through the server's loader, prints the
findings, and exits with 1 if something fails. It takes any SavedModel. Run as a file it does not import this package,
for example under another version of TensorFlow. A LiteRT or an ONNX export is called in a process without TensorFlow.
"""

import argparse
import collections
import contextlib
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __package__:
    from tf_transformer.extensions.conformance.probe import HALF_TOLERANCE, TOLERANCE, Finding, finding
    from tf_transformer.utils.folders import EXPORTS, newest
    from tf_transformer.utils.terminal import quiet_import
else:
    # Run as a file, where the package may not be installed.
    from probe import HALF_TOLERANCE, TOLERANCE, Finding, finding  # type: ignore[no-redef]

    quiet_import = contextlib.nullcontext  # type: ignore[assignment]
    EXPORTS, newest = (), lambda path, *files: path  # type: ignore[assignment]

# A server has all of TensorFlow's own ops, and the ops of tensorflow-text, which it links in.
TEXT_OPS = (
    *("Sentencepiece", "TFText>", "FastWordpiece", "Wordpiece", "NormalizeUTF8", "CaseFoldUTF8", "FastBertNormalize"),
    *("RegexSplit", "WhitespaceTokenize", "UnicodeScriptTokenize", "SplitMerge", "Rouge", "ConstrainedSequence"),
    *("SentenceFragments", "MaxSpanningTree", "Phrase"),
)
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
REST_DTYPES = ["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "bool", "string"]
PROBE_SECONDS = 1800


def check(path: str | os.PathLike[str]) -> list[Finding]:
    """Checks the directory of a SavedModel, NAME/VERSION, or of a LiteRT or an ONNX export.

    Raises:
        FileNotFoundError: If the directory does not contain one.
    """
    path = Path(os.path.expanduser(path)).absolute()
    path = newest(path, *EXPORTS) or path
    if any((path / name).is_file() for name in ("model.tflite", "model.onnx")):
        return list(_run("client", path))
    if not (path / "saved_model.pb").is_file():
        others = "Exports for CTranslate2 and transformers have no check"
        raise FileNotFoundError(f"expected the directory of a SavedModel, found no saved_model.pb in {path}. {others}")
    with quiet_import():
        import tensorflow as tf
    with tempfile.TemporaryDirectory() as parent:
        plain = path
        # TensorFlow takes the names of variables' files for patterns, so a link stands for a name such as "a[1]".
        if glob.escape(str(path)) != str(path):
            plain = Path(parent) / "1"
            plain.symlink_to(path, target_is_directory=True)
        try:
            findings, graph = [*_read(path, plain)], graph_of(path)
        except Exception as error:  # A damaged file can make TensorFlow raise any error, such as IndexError.
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            return [Finding("FAIL", f"the files cannot be read: {reason}"[:500])]
        few_bits = {dtype.as_datatype_enum for dtype in (tf.bfloat16, tf.float16, tf.int8)}
        dtypes = {node.attr["dtype"].type for node in nodes_of(graph) if node.op == "VarHandleOp"} if graph else set()
        tolerance = HALF_TOLERANCE if dtypes & few_bits else TOLERANCE
        return [*findings, *_run("python", plain), *_run("server", plain, str(tolerance))]


def failures(findings: list[Finding]) -> list[Finding]:
    """Returns the findings of level "FAIL"."""
    return [finding for finding in findings if finding.level == "FAIL"]


def graph_of(path: Path) -> Any:
    """Returns the only MetaGraphDef tagged "serve", or `None`."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graphs = [graph for graph in saved_model.meta_graphs if set(graph.meta_info_def.tags) == {"serve"}]
    return graphs[0] if len(graphs) == 1 else None


def nodes_of(graph: Any) -> list[Any]:
    """Returns a graph's nodes, those of its functions included."""
    return [*graph.graph_def.node, *(node for f in graph.graph_def.library.function for node in f.node_def)]


def _read(path: Path, plain: Path) -> Iterator[Finding]:
    """Yields findings from the files. `plain` is the directory under a name that TensorFlow reads."""
    yield finding("the directory's name is an integer", [path.name] * (not path.name.isdigit()))
    graph = graph_of(path)
    if graph is None:
        yield Finding("FAIL", 'expected one graph tagged only "serve"')
        return
    yield from _ops(graph)
    yield from _variables(plain, graph)

    names = {node.attr["shared_name"].s.decode("utf-8", "replace") for node in nodes_of(graph)}
    # TensorFlow names a table after its file, as in "hash_table_/home/me/vocabulary_-2_-1".
    local = {name for name in names if re.search(r"(^|_)/\w+/", name)}
    content = (path / "saved_model.pb").read_bytes()
    paths = {str(Path.home()), os.getcwd(), str(path.parent), sysconfig.get_path("purelib")}
    local |= {folder for folder in paths if len(folder) > 5 and folder.encode() in content}
    yield finding("no path of this machine is in the graph", local, "WARN")

    batching = path / "batching_params.pbtxt"
    if batching.is_file():
        text = batching.read_text()
        sizes = [int(size) for size in re.findall(r"allowed_batch_sizes\s*:\s*(\d+)", text)]
        maximum = [int(size) for size in re.findall(r"max_batch_size\s*\{\s*value\s*:\s*(\d+)", text)]
        wrong = [f"allowed {sizes}, maximum {maximum}"] * (sizes != sorted(set(sizes)) or sizes[-1:] != maximum)
        yield finding("batching_params.pbtxt: the allowed sizes rise to the maximum", wrong)

    signatures = {name: value for name, value in graph.signature_def.items() if not name.startswith("__")}
    yield finding("there is a signature serving_default", {"serving_default"} - set(signatures))
    for name, signature in signatures.items():
        yield from _ports(name, signature)


def _ops(graph: Any) -> Iterator[Finding]:
    from tensorflow.python.framework import op_def_registry

    functions, nodes = graph.graph_def.library.function, nodes_of(graph)
    ops = {node.op for node in nodes} - {function.signature.name for function in functions}
    foreign = {op for op in ops if op_def_registry.get(op) is None and not op.startswith(TEXT_OPS)}
    yield finding("every op is TensorFlow's or tensorflow-text's", foreign)
    yield finding("no op calls Python", ops & PYTHON_OPS)
    compiled = {f.signature.name for f in functions if f.attr["_XlaMustCompile"].b}
    compiled |= {node.name for node in nodes if node.attr["_XlaMustCompile"].b}
    yield finding("nothing needs XLA, which the server has switched off", compiled)
    pinned = {node.device for node in nodes if re.search("GPU|TPU", node.device.upper())}
    yield finding("no op is pinned to an accelerator", pinned)


def _variables(path: Path, graph: Any) -> Iterator[Finding]:
    import numpy as np
    import tensorflow as tf

    names = [node.attr["shared_name"].s.decode() for node in nodes_of(graph) if node.op == "VarHandleOp"]
    if not names:
        yield Finding("ok", "there are no variables")
        return
    index = path / "variables" / "variables.index"
    if not index.is_file():
        yield Finding("FAIL", "there is no variables.index, which the server would not notice until the first request")
        return
    anonymous = {name for name in names if re.fullmatch(r"Variable(_\d+)?", name)}
    reason = "Keras's, tracked directly, lose them, and the server does not restore what is read"
    yield finding(f"variables have names ({reason})", anonymous if len(anonymous) > 1 else (), "WARN")
    names_by_content, size = collections.defaultdict(list), 0
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    for name in reader.get_variable_to_shape_map():
        value = np.asarray(reader.get_tensor(name))
        if value.dtype != object:
            size += value.nbytes
            content = value.tobytes()
            # Weights that are all zeros or ones may be equal by chance.
            if value.nbytes >= 64 and content != content[: value.itemsize] * value.size:
                names_by_content[hashlib.sha256(content).hexdigest(), value.shape].append(name)
    repeated = {" = ".join(sorted(same)) for same in names_by_content.values() if len(same) > 1}
    yield finding("weights are stored once", repeated)
    stored = sum(file.stat().st_size for file in (path / "variables").iterdir())
    room = 1.1 * size + 2 * index.stat().st_size + 50_000  # for the object graph and names
    message = f"variables take {stored:,} bytes for {size:,} of weights"
    yield finding(message, ["more than a tenth more"] * (stored > room))


def _ports(name: str, signature: Any) -> Iterator[Finding]:
    """Yields findings about a signature's inputs, outputs and defaults."""
    import tensorflow as tf

    fails, warns = [], []
    if signature.method_name != "tensorflow/serving/predict":
        fails.append(f"method {signature.method_name!r}")
    if not signature.inputs:
        fails.append("no inputs, which REST cannot ask for")
    for kind, ports in (("input", signature.inputs), ("output", signature.outputs)):
        for port, info in ports.items():
            sizes = None if info.tensor_shape.unknown_rank else [dim.size for dim in info.tensor_shape.dim]
            if not info.name or not info.dtype:
                fails.append(f"{kind} {port} is not a dense tensor")
                continue
            dtype = tf.as_dtype(info.dtype).name
            if dtype not in REST_DTYPES:
                fails.append(f"{kind} {port} is {dtype}, which cannot cross REST")
            if not sizes:
                fails.append(f"{kind} {port} has no batch axis: impossible with --enable_batching and in REST's rows")
            elif sizes[0] != -1:
                warns.append(f"{kind} {port} only has a batch of {sizes[0]}")
            elif kind == "output" and -1 in sizes[1:]:
                warns.append(f"output {port} has a width {sizes} that depends on the other rows")
            if port.endswith("_bytes"):
                warns.append(f"{kind} {port} would be base64 over REST")
    for port, proto in signature.defaults.items():
        if (shape := [dim.size for dim in proto.tensor_shape.dim]) != [1]:
            fails.append(f"default of {port} has the shape {shape}, expected [1]: the server feeds it")
    message = f"{name}: inputs, outputs and defaults can cross REST and be merged"
    yield finding(message, fails)
    if warns:
        yield finding(message, warns, "WARN")


def _run(kind: str, path: Path, *arguments: str) -> Iterator[Finding]:
    """Yields the findings of probe.py, which runs in a separate process."""
    command = [sys.executable, str(Path(__file__).with_name("probe.py")), kind, str(path), *arguments]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        yield Finding("FAIL", f"the process that called it did not end within {PROBE_SECONDS} seconds")
        return
    for line in process.stdout.splitlines():
        yield Finding(*json.loads(line))
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding("FAIL", f"the process that called it ended with {process.returncode}: {reason[:300]}")


def main(argv: list[str] | None = None) -> None:
    command = sys.argv[0] if sys.argv[0].endswith(" check") else "python -m tf_transformer.extensions.conformance.check"
    parser = argparse.ArgumentParser(command, description=(__doc__ or "").split(":")[0])
    folder = "directory NAME/VERSION of a SavedModel, a LiteRT or an ONNX export"
    parser.add_argument("path", metavar="DIR", help=folder)
    try:
        findings = check(parser.parse_args(argv).path)
    except (FileNotFoundError, ValueError) as error:  # a ValueError is about Keras's backend
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for level, message in findings:
        print(f"{level:4} {message}")
    sys.exit(1 if failures(findings) else 0)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
