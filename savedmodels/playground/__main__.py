"""Try a translator's export in the browser: a text of any length, and for each sentence the n best translations with
scores and alignment. LiteRT and ONNX exports work as well, without alignment.

The same port serves TensorFlow Serving's REST API, so you can try clients without the server. Only programs on this
machine can reach it. For trials, not for production.
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
    prog, formatter = "python -m savedmodels.playground", argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog, description=__doc__.strip(), formatter_class=formatter)
    parser.add_argument("folder", help="NAME/VERSION of a model, or NAME for its newest version")
    parser.add_argument("--name", type=model_name, help="the model's name in requests (the folder's NAME)")
    port = "port of the page and the REST API; 0 means any free port (8501)"
    parser.add_argument("--port", type=int, default=8501, help=port)
    parser.add_argument("--verbose", action="store_true", help="log each request")
    args = parser.parse_args(argv)
    if not 0 <= args.port < 65536:
        parser.error(f"--port: expected 0 to 65535, got {args.port}")
    missing = [package for package in ("flask", "sentencex") if not importlib.util.find_spec(package)]
    if missing:
        parser.error(f'{" and ".join(missing)} not installed. Run: pip install "tf-transformer[playground]"')

    load_tensorflow()
    with quiet_stderr():
        from werkzeug.serving import make_server

        from tf_transformer.extensions.server import predict
        from tf_transformer.extensions.server.model import ServedModel, find_version

    folder = find_version(args.folder)
    # Bind the port first: a taken port should fail before the model loads.
    with socket.create_server(("127.0.0.1", args.port)) as listening:
        print(f"loading {folder} ...", flush=True)
        with quiet_stderr():
            model = ServedModel(folder, args.name)
            model.warm_up()
        server = make_server("127.0.0.1", 0, predict.app(model), threaded=True, fd=listening.fileno())
        if not args.verbose:
            logging.getLogger("werkzeug").setLevel(logging.ERROR)
        print(f"{model.name}, version {model.version}", flush=True)
        print(f"page and REST: http://127.0.0.1:{server.port}", flush=True)
        print("Ctrl-C stops it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    run_program(main)
