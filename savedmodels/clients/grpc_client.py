"""Translate with a server's gRPC API. Needs tensorflow-serving-api.

For each text, or each line of standard input, it prints lines of number, score and translation, best first. Missing
options take the model's defaults.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

OPTIONS = {  # of `search`; this program imports nothing of the package, so it has its own list
    "beam_size": tf.int32,
    "length_penalty": tf.float32,
    "min_length": tf.int32,
    "max_length": tf.int32,
}
FIRST = {"beam_size", "length_penalty", "max_length"}  # the options of `translate`; older exports have no others


def translate_request(
    name: str, text: str, version: int | str | None = None, **options: Any
) -> predict_pb2.PredictRequest:
    """A request for one text; a server with batching merges such requests by itself."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = name
    request.model_spec.signature_name = "translate" if options.keys() <= FIRST else "search"
    if version and str(version).isdigit():
        request.model_spec.version.value = int(version)
    elif version:
        request.model_spec.version_label = version
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([text], tf.string))
    for key, value in options.items():  # [1] each
        request.inputs[key].CopyFrom(tf.make_tensor_proto([value], OPTIONS[key]))
    request.output_filter.extend(["translations", "scores"])  # the server computes and sends nothing else
    return request


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="texts to translate (the lines of standard input)")
    parser.add_argument("--host", default="localhost:8500", help="HOST:PORT (localhost:8500)")
    parser.add_argument("--name", default="demo", help="name of the model (demo)")
    parser.add_argument("--version", help="a version's number or label (the newest)")
    parser.add_argument("--n-best", type=int, default=1, help="how many translations of each text (1)")
    for key, dtype in OPTIONS.items():
        kind = float if dtype.is_floating else int
        parser.add_argument(f"--{key.replace('_', '-')}", type=kind, help="(the model's)")
    parser.add_argument("--timeout", type=float, default=30, help="deadline of an answer in seconds (30)")
    args = parser.parse_args(argv)

    options = {key: getattr(args, key) for key in OPTIONS if getattr(args, key) is not None}
    texts = args.texts or [line.rstrip("\n") for line in sys.stdin]
    with grpc.insecure_channel(args.host) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        requests = [translate_request(args.name, text, args.version, **options) for text in texts]
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
