"""Serve a model over HTTP: a web page, TensorFlow Serving's REST API, and LibreTranslate's API for apps.

A translator's SavedModel has all three. Other translators lack the second. Other SavedModels have only the second.
"""

import logging
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from typing import Any

from tf_transformer.utils.folders import needs_no_tensorflow
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.terminal import quiet_stderr

from .command import (
    add_call_options,
    add_workers,
    engine,
    load_tensorflow,
    model_name,
    of_calls,
    options,
    positive,
    run_program,
)


def app(model: Any, options: Mapping[str, Any] | None = None) -> Any:
    """Returns the WSGI application of a translator, for servers of your choice. Options are those of its calls."""
    from tf_transformer.extensions.server.app import app

    return app(model, options)


def limit(text: str) -> int:
    """Converts an option's value to a limit: a positive number, or -1 for none."""
    return -1 if text == "-1" else positive(text)


def main(argv: list[str] | None = None) -> None:
    parser = options("serve", __doc__)
    add = parser.add_argument
    add("model", help="directory, such as savedmodels/demo/1, or a name on the Hugging Face Hub")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 or :: means all of this machine (127.0.0.1)")
    add("--port", type=int, default=5000, help="port to listen on; 0 means any free port (5000)")
    add("--name", type=model_name, metavar="NAME", help="the model's name in requests (the directory's)")
    add("--batch-size", type=positive, metavar="N", help="sentences per batch; between batches other requests run (32)")
    add_workers(add)
    add("--char-limit", type=limit, default=100_000, metavar="N", help="characters per text, or -1 (100000)")
    add("--batch-limit", type=limit, default=1_000, metavar="N", help="texts per request, or -1 (1000)")
    add("--req-limit", type=limit, default=-1, metavar="N", help="requests per minute and client, or -1 (-1)")
    add("--body-limit", type=positive, default=4 << 20, metavar="N", help="bytes per request (4194304)")
    add("--verbose", action="store_true", help="log each request, without its text")
    add_call_options(add)
    args = parser.parse_args(argv)
    if not 0 <= args.port < 65536:
        parser.error(f"--port: expected 0 to 65535, got {args.port}")
    if not args.host.strip():
        parser.error(f"--host: expected an address, got {args.host!r}. Pass 0.0.0.0 to listen on all of this machine.")
    for package in ("flask", "waitress"):
        import_extra(package, "serve", "a server")
    # Texts of requests are in warnings.
    warnings.simplefilter("ignore")
    logging.basicConfig(format="%(message)s", level=logging.ERROR, stream=sys.stderr)
    if not needs_no_tensorflow(args.model):
        load_tensorflow()
    from tf_transformer.extensions.server import app as server
    from tf_transformer.extensions.server.libretranslate import Languages
    from tf_transformer.extensions.server.model import Limits, ServedModel

    limits = Limits(args.char_limit, args.batch_limit, args.req_limit, args.body_limit)
    # Bind the port first: a taken port should fail before the model loads.
    with server.listen(args.host, args.port) as listening:
        # It answers 503 while the model loads, which takes minutes on a busy machine.
        loading = server.Loading()
        running = server.http_server(loading, listening, limits)
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        opened = lambda folder: engine(folder, vars(args), batch_size=args.batch_size or 32)  # noqa: E731
        model, calls = ServedModel(args.model, args.name, opened, args.workers), of_calls(vars(args))
        languages = f"{Languages(model.engine, calls)}, " if model.engine else ""
        print(f"{model.name}, version {model.version}: {languages}{limits}", flush=True)
        print(model, flush=True)
        served = server.app(model, calls, limits, server.is_local(listening))
        with quiet_stderr():
            server.warm_up(served, model)
        server.LOG.setLevel(logging.INFO if args.verbose else logging.ERROR)
        loading.app = served
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP. nohup ignores it.
            if hasattr(signal, name) and (name != "SIGHUP" or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN):
                signal.signal(getattr(signal, name), lambda number, _: server.stop(running, number))
        print(f"listening on {server.address_of(listening)}\nCtrl-C stops it", flush=True)
        thread.join()


if __name__ == "__main__":
    run_program(main)
