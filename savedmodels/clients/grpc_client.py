"""Translate with a server's gRPC API. Needs tensorflow-serving-api.

For each text, or each line of standard input, it prints lines of number, score and translation, best first. A text is
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
    """In this block imports from a package find its modules, and do not run the package itself."""
    if name in sys.modules or not (spec := importlib.util.find_spec(name)):
        yield
        return
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        del sys.modules[name]


# The server's protos contain TensorFlow's, which only TensorFlow's package has. To load all of it took 9 s and 720 MiB.
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
    """A model of a server.

    Args:
        channel: to the server.
        name: of the model.
        version: a number or a label; `None` means the newest.
        timeout: the deadline of each answer, in seconds after its request.
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
        """Inputs and outputs are arrays by name; the server computes and sends only the `outputs`, if there are any."""
        request = predict_pb2.PredictRequest(model_spec=self.model, output_filter=outputs)
        request.model_spec.signature_name = signature
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(proto(value))
        answer = self.stub.Predict(request, timeout=self.timeout).outputs
        return {name: array(tensor) for name, tensor in answer.items()}

    def options(self, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The options of `translate` as [1], by the model's defaults where nothing else is given.

        Raises:
            LookupError: the model has no such option.
            TypeError: a value is of another dtype.
        """
        request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec=self.model)
        request.metadata_field.append("signature_def")
        found = get_model_metadata_pb2.SignatureDefMap()
        self.stub.GetModelMetadata(request, timeout=self.timeout).metadata["signature_def"].Unpack(found)
        if "translate" not in found.signature_def:
            raise LookupError("expected a translator's model, got one without the signature translate")
        dtypes = {key: info.dtype for key, info in found.signature_def["translate"].inputs.items() if key != "text"}
        names = sorted(dtypes)
        if unknown := given.keys() - dtypes.keys():
            raise LookupError(f"--option: expected one of {', '.join(names)}; got {', '.join(sorted(unknown))}")
        defaults = self.predict("model_info", {"key": np.array(names, object)})["value"]
        values: dict[str, Any] = {**dict(zip(names, map(parsed, defaults), strict=True)), **given}
        return {name: of_one(name, values[name], KINDS[dtypes[name]][1]) for name in names}


def proto(value: np.ndarray) -> Any:
    """An array as a tensor; strings are bytes, or become UTF-8."""
    dtype, field = next((dtype, field) for dtype, (field, kind) in KINDS.items() if kind == value.dtype)
    values = [one.encode() if isinstance(one, str) else one for one in value.ravel().tolist()]
    tensor = tensor_pb2.TensorProto(dtype=dtype, **{field: values})
    for size in value.shape:
        tensor.tensor_shape.dim.add(size=size)
    return tensor


def array(tensor: Any) -> np.ndarray:
    """A tensor as an array; strings are bytes."""
    field, dtype = KINDS[tensor.dtype]
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype).reshape(shape)
    return np.array(getattr(tensor, field), dtype).reshape(shape)


def of_one(name: str, value: Any, dtype: np.dtype) -> np.ndarray:
    """An option's value as an array of one.

    Raises:
        TypeError: the dtype does not hold it.
    """
    of_kind: Any = {"f": (int, float), "i": int}.get(dtype.kind, str)
    fits = isinstance(value, of_kind) and (dtype.kind != "i" or abs(value) <= np.iinfo(dtype).max)
    if isinstance(value, bool) or not fits:
        raise TypeError(f"{name}: expected {'a text' if of_kind is str else dtype}, got {value}")
    return np.array([value.encode() if isinstance(value, str) else value], dtype)


def translate(client: Client, texts: list[str], options: Mapping[str, np.ndarray]) -> list[list[tuple[float, str]]]:
    """Scores and translations of each text, best first, by one request.

    Raises:
        LookupError: the model does not know a language.
    """
    # Each row has every option, as a server with batching wants it.
    rows = {name: value.repeat(len(texts)) for name, value in options.items()}
    rows["text"] = np.array([text.encode() for text in texts], object)
    found = client.predict("translate", rows, ["translations", "scores", "truncated", "source_length"])
    if np.any(found["truncated"] & (found["source_length"] == 0)):  # nothing of a text was read
        codes = " or ".join(options[name][0].decode() for name in ("source_language", "target_language"))
        raise LookupError(f"expected languages that model_info lists for the key languages, got {codes}")
    return [
        [(score, text.decode()) for score, text in zip(*row, strict=True) if score > -1e8]  # -1e9: not used
        for row in zip(found["scores"], found["translations"], strict=True)
    ]


def lines() -> list[str]:
    """The lines of standard input, in UTF-8."""
    sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")  # type: ignore[union-attr]
    return [line.rstrip("\r\n") for line in sys.stdin]


def parsed(value: str) -> Any:
    """The value of an option: a number, or a text, such as a language's code."""
    try:
        return json.loads(value)
    except ValueError:
        if not value:
            raise
        return value


def option(text: str) -> tuple[str, Any]:
    """NAME=VALUE as name and value."""
    name, _, value = text.partition("=")
    return name, parsed(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8500", help="HOST:PORT (localhost:8500)")
    parser.add_argument("--name", default="demo", help="name of the model (demo)")
    parser.add_argument("--version", help="a version's number or label (the newest)")
    parser.add_argument("--n-best", type=int, default=1, help="how many translations of each text (1)")
    what = "an option of the model, such as beam_size=2; may be repeated (the model's)"
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=what)
    parser.add_argument("--batch-size", type=int, default=32, help="texts a request (32)")
    parser.add_argument("--timeout", type=float, default=30, help="deadline of each request in seconds (30)")
    args = parser.parse_intermixed_args(argv)
    for name in ("n_best", "batch_size", "timeout"):
        if not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(args, name)}")

    done, said = 0, time.monotonic()
    try:
        texts = args.texts or lines()
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
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    print(f"{done:,} of {len(texts):,} texts", file=sys.stderr, flush=True)
    except grpc.RpcError as error:
        late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        advice = "; raise --timeout or lower --batch-size" if late else ""
        counts = f"{done:,} of {len(texts):,} texts were translated"
        sys.exit(f"error: {error.code().name}: {error.details()}; {counts}{advice}")
    except (LookupError, TypeError, UnicodeError) as error:  # an unknown option, a value of another dtype, other bytes
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it is closed, as by `2>&-`; what is printed there must not go to the other
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
