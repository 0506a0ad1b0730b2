"""Try a SavedModel in the browser: a text of any length, and of each sentence the n best translations with scores, and
their alignment. A LiteRT or an ONNX export works as well, without alignment.

The same port serves TensorFlow Serving's REST API, and --grpc-port its gRPC API, so you can try clients without the
server. Only programs on this machine can reach it. For trials, not for production.
"""

import argparse
import contextlib
import importlib.util
import logging
import socket
from collections.abc import Sequence

from tf_transformer.utils.terminal import quiet_stderr
from trainers.command import load_tensorflow, model_name, run_program


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m savedmodels.playground",
        description=__doc__.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="NAME/VERSION of a model, or NAME for its newest version")
    parser.add_argument("--name", type=model_name, help="the model's name in requests (the folder's NAME)")
    parser.add_argument(
        "--port", type=int, default=8501, help="port of the page and the REST API; 0 is any free port (8501)"
    )
    parser.add_argument("--grpc-port", type=int, help="port of the gRPC API (none); needs tensorflow-serving-api")
    parser.add_argument("--verbose", action="store_true", help="say each request to the page or to an API")
    args = parser.parse_args(argv)
    for name, port in (("--port", args.port), ("--grpc-port", args.grpc_port)):
        if port is not None and not 0 <= port < 65536:
            parser.error(f"{name}: expected 0 to 65535, got {port}")
    needed = {"flask": "flask", "sentencex": "sentencex"}
    if args.grpc_port is not None:
        needed["tensorflow_serving"] = "tensorflow-serving-api"
    missing = [package for module, package in needed.items() if not importlib.util.find_spec(module)]
    if missing:
        parser.error(f'{" and ".join(missing)} not installed; pip install "tf-transformer[playground]" brings it')

    load_tensorflow()
    with quiet_stderr():
        from werkzeug.serving import make_server

        from savedmodels.playground import rest
        from savedmodels.playground.model import ServedModel, find_version

    folder = find_version(args.folder)
    # The ports first: a taken port should fail before the model loads.
    with socket.create_server(("127.0.0.1", args.port)) as listening:
        print(f"loading {folder} ...", flush=True)
        with quiet_stderr():
            model = ServedModel(folder, args.name)
            model.warm_up()
        server = make_server("127.0.0.1", 0, rest.app(model), threaded=True, fd=listening.fileno())
        if not args.verbose:
            logging.getLogger("werkzeug").setLevel(logging.ERROR)
        print(f"{model.name}, version {model.version}", flush=True)
        print(f"page and REST: http://127.0.0.1:{server.port}", flush=True)
        if args.grpc_port is not None:
            from savedmodels.playground import rpc

            rpc_server, port = rpc.serve(model, args.grpc_port, args.verbose)
            print(f"gRPC: 127.0.0.1:{port}", flush=True)
        print("Ctrl-C stops it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
        if args.grpc_port is not None:
            rpc_server.stop(None)


if __name__ == "__main__":
    run_program(main)
