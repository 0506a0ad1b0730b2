"""Translate with a server's gRPC API. Needs tensorflow-serving-api.

For each text, or each line of standard input, it prints lines of number, score and translation, best first. Missing
options take the model's defaults.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, model_pb2, predict_pb2, prediction_service_pb2_grpc


def model_of(name: str, version: int | str | None = None) -> model_pb2.ModelSpec:
    """A model's name, and the number or label of a version; `None` means the newest."""
    model = model_pb2.ModelSpec(name=name)
    if version and str(version).isdigit():
        model.version.value = int(version)
    elif version:
        model.version_label = version
    return model


def tensors_of(options: Mapping[str, Any], stub: Any, model: model_pb2.ModelSpec, timeout: float) -> dict[str, Any]:
    """Options of `translate` as tensors [1]; the server says their names and dtypes."""
    request = get_model_metadata_pb2.GetModelMetadataRequest(model_spec=model, metadata_field=["signature_def"])
    found = get_model_metadata_pb2.SignatureDefMap()
    stub.GetModelMetadata(request, timeout=timeout).metadata["signature_def"].Unpack(found)
    dtypes = {key: info.dtype for key, info in found.signature_def["translate"].inputs.items() if key != "text"}
    if unknown := options.keys() - dtypes.keys():
        raise LookupError(f"--option: expected one of {', '.join(sorted(dtypes))}; got {', '.join(sorted(unknown))}")
    return {key: tf.make_tensor_proto([value], dtypes[key]) for key, value in options.items()}


def translate_request(model: model_pb2.ModelSpec, text: str, options: Mapping[str, Any]) -> predict_pb2.PredictRequest:
    """A request for one text; a server with batching merges such requests by itself."""
    request = predict_pb2.PredictRequest(model_spec=model)
    request.model_spec.signature_name = "translate"
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([text], tf.string))
    for key, tensor in options.items():
        request.inputs[key].CopyFrom(tensor)
    request.output_filter.extend(["translations", "scores"])  # the server computes and sends nothing else
    return request


def option(text: str) -> tuple[str, Any]:
    """NAME=VALUE as name and number."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8500", help="HOST:PORT (localhost:8500)")
    parser.add_argument("--name", default="demo", help="name of the model (demo)")
    parser.add_argument("--version", help="a version's number or label (the newest)")
    parser.add_argument("--n-best", type=int, default=1, help="how many translations of each text (1)")
    what = "an option of the search, such as beam_size=2; may be repeated (the model's)"
    parser.add_argument("--option", type=option, action="append", default=[], metavar="NAME=VALUE", help=what)
    parser.add_argument("--timeout", type=float, default=30, help="deadline of an answer in seconds (30)")
    args = parser.parse_args(argv)

    texts = args.texts or [line.rstrip("\n") for line in sys.stdin]
    with grpc.insecure_channel(args.host) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        model = model_of(args.name, args.version)
        options = tensors_of(dict(args.option), stub, model, args.timeout) if args.option else {}
        requests = [translate_request(model, text, options) for text in texts]
        answers = [stub.Predict.future(request, timeout=args.timeout) for request in requests]  # all at once
        for i, answer in enumerate(answers):
            outputs = answer.result().outputs
            scores, translations = (tf.make_ndarray(outputs[key])[0] for key in ("scores", "translations"))
            for score, translation in zip(scores[: args.n_best], translations, strict=False):
                if score > -1e8:  # -1e9 is a place that is not used
                    print(i, f"{score:.4f}", translation.decode(), sep="\t")


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as error:
        sys.exit(f"error: {error.code().name}: {error.details()}")
    except (LookupError, TypeError) as error:  # an unknown option, or a value of another dtype
        sys.exit(f"error: {error}")
