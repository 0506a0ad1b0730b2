"""Translate with a server's gRPC API. Needs tensorflow-serving-api.

For each text, or each line of standard input, it prints lines of index, score and translation, best first. A text is
one sentence. Missing options take the model's defaults.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import numpy as np


@contextlib.contextmanager
def _not_run(name: str) -> Iterator[None]:
    """Lets imports from a package find its modules without running the package's own code."""
    if name in sys.modules or not (spec := importlib.util.find_spec(name)):
        yield
        return
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[name]


# The server's protos contain TensorFlow's, which only its package has. Loading all of it took 9 s and 720 MiB.
with _not_run("tensorflow"):
    from tensorflow.core.framework import tensor_pb2, types_pb2
    from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2, predict_pb2, prediction_service_pb2_grpc

KINDS = {  # a tensor's dtype, the field of its values, and NumPy's dtype
    types_pb2.DT_FLOAT: ("float_val", np.dtype("float32")),
    types_pb2.DT_INT32: ("int_val", np.dtype("int32")),
    types_pb2.DT_BOOL: ("bool_val", np.dtype("bool")),
    types_pb2.DT_STRING: ("string_val", np.dtype(object)),
}


class Client:
    """A model on a server.

    Args:
        channel: Channel to the server.
        name: Model name.
        version: Version number or label. Defaults to the newest.
        timeout: Seconds to wait for each response.
    """

    def __init__(self, channel: grpc.Channel, name: str, version: int | str | None = None, timeout: float = 30) -> None:
        self.stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self.model = model_pb2.ModelSpec(name=name)
        if version and str(version).isdigit():
            self.model.version.value = int(version)
        elif version:
            self.model.version_label = version
        self.timeout = timeout

    def predict(self, signature: str, inputs: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Runs a signature on arrays by name, and returns arrays by name: only `outputs`, if given."""
        request = predict_pb2.PredictRequest(model_spec=self.model, output_filter=outputs)
        request.model_spec.signature_name = signature
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(proto(value))
        tensors = self.stub.Predict(request, timeout=self.timeout).outputs
        return {name: array(tensor) for name, tensor in tensors.items()}

    def options(self, changes: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the options of `translate`, arrays of shape [1], with the model's defaults for missing ones."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec=self.model)
        request.metadata_field.append("signature_def")
        signatures = get_model_metadata_pb2.SignatureDefMap()
        self.stub.GetModelMetadata(request, timeout=self.timeout).metadata["signature_def"].Unpack(signatures)
        if "translate" not in signatures.signature_def:
            raise LookupError("expected a translator's model, got one without the signature translate")
        inputs = signatures.signature_def["translate"].inputs
        dtypes = {key: info.dtype for key, info in inputs.items() if key != "text"}
        names = sorted(dtypes)
        if unknown := changes.keys() - dtypes.keys():
            raise LookupError(f"--option: expected one of {', '.join(names)}; got {', '.join(sorted(unknown))}")
        defaults = self.predict("model_info", {"key": np.array(names, object)})["value"]
        values: dict[str, Any] = {**dict(zip(names, map(parsed, defaults), strict=True)), **changes}
        return {name: of_one(name, values[name], KINDS[dtypes[name]][1]) for name in names}


def proto(value: np.ndarray) -> Any:
    """Converts an array to a tensor. Strings are bytes, or become UTF-8."""
    dtype, field = next((dtype, field) for dtype, (field, kind) in KINDS.items() if kind == value.dtype)
    values = [item.encode() if isinstance(item, str) else item for item in value.ravel().tolist()]
    tensor = tensor_pb2.TensorProto(dtype=dtype, **{field: values})
    for size in value.shape:
        tensor.tensor_shape.dim.add(size=size)
    return tensor


def array(tensor: Any) -> np.ndarray:
    """Converts a tensor to an array. Strings are bytes."""
    field, dtype = KINDS[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape)
    return np.array(getattr(tensor, field), dtype).reshape(shape)


def of_one(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """Converts an option's value to an array of one, or raises `TypeError` if the dtype does not hold it."""
    of_kind: Any = {"f": (int, float), "i": int}.get(dtype.kind, str)
    fits = isinstance(value, of_kind) and (dtype.kind != "i" or abs(value) <= np.iinfo(dtype).max)
    if isinstance(value, bool) or not fits:
        raise TypeError(f"{name}: expected {'a text' if of_kind is str else dtype}, got {value}")
    return np.array([value.encode() if isinstance(value, str) else value], dtype)


def translate(client: Client, texts: list[str], options: Mapping[str, np.ndarray]) -> list[list[tuple[float, str]]]:
    """Returns scores and translations of each text, best first, by one request."""
    # A server with batching needs every option in each row.
    rows = {name: value.repeat(len(texts)) for name, value in options.items()}
    rows["text"] = np.array([text.encode() for text in texts], object)
    outputs = client.predict("translate", rows, ["translations", "scores", "truncated", "source_length"])
    if np.any(outputs["truncated"] & (outputs["source_length"] == 0)):  # the model read nothing
        codes = " or ".join(options[name][0].decode() for name in ("source_language", "target_language"))
        raise LookupError(f"expected languages that model_info lists for the key languages, got {codes}")
    return [
        [(score, text.decode()) for score, text in zip(*row, strict=True) if score > -1e8]  # unused slots have -1e9
        for row in zip(outputs["scores"], outputs["translations"], strict=True)
    ]


def parsed(value: str) -> Any:
    """Converts an option's value: a number, or a text such as a language code."""
    try:
        return json.loads(value)
    except ValueError:
        if not value:
            raise
        return value


def option(text: str) -> tuple[str, Any]:
    """Splits NAME=VALUE."""
    name, _, value = text.partition("=")
    return name, parsed(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8500", help="HOST:PORT (localhost:8500)")
    parser.add_argument("--name", default="demo", help="model name (demo)")
    parser.add_argument("--version", help="version number or label (the newest)")
    parser.add_argument("--n-best", type=int, default=1, help="number of translations per text (1)")
    usage = "option of the model, such as beam_size=2 (the model's). Repeatable."
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=usage)
    parser.add_argument("--batch-size", type=int, default=32, help="texts per request (32)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds to wait for each response (30)")
    args = parser.parse_intermixed_args(argv)
    for name in ("n_best", "batch_size", "timeout"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")

    done, reported = 0, time.monotonic()
    try:
        if not (texts := args.texts):
            sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")  # type: ignore[union-attr]
            texts = [line.rstrip("\r\n") for line in sys.stdin]
        with grpc.insecure_channel(args.host) as channel:
            client = Client(channel, args.name, args.version, args.timeout)
            options = client.options(dict(args.option))
            while done < len(texts):
                batch = texts[done : done + args.batch_size]
                for i, translations in enumerate(translate(client, batch, options), done):
                    for score, translation in translations[: args.n_best]:
                        print(i, f"{score:.4f}", translation.replace("\n", " "), sep="\t")
                sys.stdout.flush()
                done += len(batch)
                if time.monotonic() - reported > 10:
                    reported = time.monotonic()
                    print(f"{done:,} of {len(texts):,} texts", file=sys.stderr, flush=True)
    except grpc.RpcError as error:
        late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        advice = "; raise --timeout or lower --batch-size" if late else ""
        counts = f"{done:,} of {len(texts):,} texts were translated"
        sys.exit(f"error: {error.code().name}: {error.details()}; {counts}{advice}")
    except (LookupError, TypeError, UnicodeError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    for stream in ("stdout", "stderr"):
        # A closed stream (`2>&-`) is replaced, so that no other file takes its number.
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
