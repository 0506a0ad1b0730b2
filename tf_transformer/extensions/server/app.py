"""The server: one WSGI application for a model, its limits and errors, and the HTTP server that runs it."""

import json
import logging
import os
import re
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import quote

from flask import Flask, Response, abort, g, request
from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.task import ErrorTask, WSGITask
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from tf_transformer.config import BadInput
from tf_transformer.extensions.server import libretranslate, predict
from tf_transformer.extensions.server.metrics import add_metrics
from tf_transformer.extensions.server.model import Limits, Rates, ServedModel
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.turns import CallerLeft, caller_left

LOG = logging.getLogger(__name__)
LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?", re.IGNORECASE)
THREADS, CONNECTIONS, SECONDS, HEADER = 64, 500, 60, 64 << 10
GRACE = 30  # seconds that requests under way may take after SIGTERM. Docker and Kubernetes kill after 10 and 30
DRAINED = 64 << 20  # bytes of a rejected request that are read, since most clients send all before they read
CORS = {  # of LibreTranslate's API, for any page
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": str(20 * 24 * 60 * 60),
}
LEFT = 499  # nginx's status for a client that has left, which only the log shows
DEEP = "expected JSON of few lists within each other, got too many"


def app(
    model: ServedModel | Engine,
    options: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    local: bool = True,
) -> Flask:
    """Returns the WSGI application of a model.

    Args:
        model: A served model, or a translator.
        options: Options of the engine's calls for LibreTranslate's API, with the languages of a model that does not
            store them.
        limits: Limits of requests.
        local: Whether the page and predict are only served under this machine's names. Otherwise a foreign page could
            make a browser send requests to a server that only its machine can reach (DNS rebinding).
    """
    served = model if isinstance(model, ServedModel) else ServedModel(model)
    limits = limits or Limits()
    flask, rates = Flask(__name__, static_folder=None, template_folder="."), Rates(limits.requests)
    flask.json.ensure_ascii = flask.json.sort_keys = False  # type: ignore[attr-defined]
    flask.url_map.converters["named"] = Named
    flask.url_map.merge_slashes = flask.url_map.strict_slashes = False
    flask.config.update(MAX_CONTENT_LENGTH=limits.body, MAX_FORM_MEMORY_SIZE=limits.body)

    @flask.before_request
    def begin() -> Response | None:
        g.began = time.perf_counter()
        caller_left.set(request.environ.get("waitress.client_disconnected") or (lambda: False))
        if (request.content_encoding or "identity").lower() != "identity":
            abort(415, f"expected a body without Content-Encoding, got {request.content_encoding[:99]!r}")
        if request.method == "POST":
            rates.spend(request.remote_addr or "")
        return Response(status=204) if request.method == "OPTIONS" else None

    @flask.after_request
    def end(response: Response) -> Response:
        if request.blueprint != "predict":
            response.headers.update(CORS)
        path, seconds = quote(request.path[:200], safe="/:"), time.perf_counter() - g.began
        LOG.info("%s %s %s %s %.3f s", request.remote_addr, request.method, path, response.status_code, seconds)
        counted(response, seconds)
        return response

    def check_host() -> None:
        if local and not LOCAL.fullmatch(request.host):
            abort(400, f"Host {request.host[:99]!r} is not trusted; expected localhost, 127.0.0.1 or [::1]")

    counted = add_metrics(flask, served.turns)
    flask.add_url_rule("/health", "health", lambda: {"status": "ok"})
    flask.register_error_handler(Exception, answer_to)
    served_api = predict.routes(served, limits)
    served_api.before_request(check_host)
    flask.register_blueprint(served_api)
    if served.engine:
        flask.register_blueprint(libretranslate.routes(served.engine, options or {}, limits, rates))
    else:
        for address in libretranslate.PATHS:
            flask.add_url_rule(address, address, lambda: predict.refuse(served), methods=["GET", "POST"])
    return flask


class Named(BaseConverter):
    """A part of an address without the verb of a request, so that GET of one is not taken for a model's name."""

    regex = "[^/]+(?<!:predict)"


class Loading:
    """WSGI application that answers 503 until `app` is set."""

    def __init__(self) -> None:
        self.app: Any = None

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if self.app:
            return self.app(environ, start_response)
        values = {"status": "loading"} if environ.get("PATH_INFO") == "/health" else {"error": "the model is loading"}
        headers = {**CORS, "Retry-After": "5"}
        return Response(json.dumps(values), 503, headers, content_type="application/json")(environ, start_response)


def answer_to(error: Exception) -> Any:
    """Returns the response of an error. The log omits its message, which may quote the text of the request."""
    status, headers = 400, {}
    if isinstance(error, HTTPException):
        headers = {name: value for name, value in error.get_headers() if name in ("Allow", "Retry-After")}
        message, status = str(error.description), error.code or 500
    elif isinstance(error, CallerLeft):
        message, status = "the client has left", LEFT
    elif isinstance(error, BadInput | RecursionError):
        message = DEEP if isinstance(error, RecursionError) else str(error)
    else:
        message, status, where = "internal error", 500, "".join(traceback.format_tb(error.__traceback__))
        path = quote(request.path[:200], safe="/:")
        LOG.error("%s %s failed: %s\n%s", request.method, path, type(error).__name__, where)
    return {"error": message.encode("utf-8", "replace").decode()}, status, headers


def warm_up(flask: Flask, model: ServedModel) -> None:
    """Calls each function of the server once, since first calls take seconds."""
    model.warm_up()
    if not model.engine:
        return
    languages = dict(zip(("source", "target"), model.engine.languages, strict=False))
    bodies: Any = ({"alternatives": 1}, {"alternatives": libretranslate.MOST_ALTERNATIVES}, {"format": "html"})
    requests = [("/translate", {"q": "A <b>b</b>.", **languages, **body}) for body in bodies]
    known = {name: value for name, value in model.engine.options.items() if name in model.engine.call_options}
    for number, (path, body) in enumerate([*requests, ("/document", {"text": "A.", **known})]):
        # Different addresses, since the limit of requests must not apply.
        flask.test_client().post(path, json=body, environ_base={"REMOTE_ADDR": f"warm-up {number}"})


class JSONErrorTask(ErrorTask):
    """Sends errors of HTTP, such as a body that is too large, in JSON, like the application."""

    def execute(self) -> None:
        error, self.channel.rejected = self.request.error, True
        body = json.dumps({"error": f"{error.reason}: {error.body}"}).encode()
        self.status, self.content_length = f"{error.code} {error.reason}", len(body)
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.write(body)


class Task(WSGITask):
    """A response. While the server ends, it closes its connection."""

    def build_response_header(self) -> bytes:
        if not self.channel.server.accepting:
            self.set_close_on_finish()
        return bytes(super().build_response_header())


class Channel(HTTPChannel):
    """A connection. After an error, it reads the rest of the request before it closes.

    Otherwise the system resets the connection, and a client that is still sending does not see the response.
    """

    task_class, error_task_class = Task, JSONErrorTask
    rejected, lingers, read = False, False, 0

    def handle_close(self) -> None:
        if not self.rejected or self.lingers or not self.connected:
            super().handle_close()
            return
        self.lingers, self.will_close = True, False
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            super().handle_close()

    def readable(self) -> bool:
        return (self.lingers and not self.will_close) or bool(super().readable())

    def handle_read(self) -> None:
        if not self.lingers:
            super().handle_read()
            return
        try:
            data = self.recv(self.adj.recv_bytes)  # closes at the end
        except OSError:
            data = b""
        self.read += len(data)
        if not data or self.read > DRAINED:
            self.handle_close()


def listen(host: str, port: int) -> socket.socket:
    """Binds a port of an address or a name. IPv4 comes first. `::` means all addresses of both versions."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = min(addresses, key=lambda each: each[0] != socket.AF_INET)
        both = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(address[:2], family=family, dualstack_ipv6=both)
    except (OSError, UnicodeError) as error:  # the latter if a part of a name is empty or too long
        raise BadInput(
            f"--host, --port: expected a free address of this machine, got {host}:{port} ({error})"
        ) from error


def http_server(application: Any, listening: socket.socket, limits: Limits) -> Any:
    """Returns a server whose `run` does not return."""
    server = create_server(
        application,
        sockets=[listening],
        threads=THREADS,
        connection_limit=CONNECTIONS,
        channel_timeout=SECONDS,
        max_request_header_size=HEADER,
        max_request_body_size=limits.body + 1,
        channel_request_lookahead=1,  # reads during a request, which shows that its client has left
        asyncore_use_poll=hasattr(select, "poll"),
        log_socket_errors=False,
        ident=None,
    )
    server.channel_class = Channel
    return server


def stop(server: Any, number: int) -> NoReturn:
    """Ends this process on a signal. Except on Ctrl-C, it first answers what is under way, for `GRACE` seconds.

    It closes the socket first, so that clients can ask another server. It does not wait for threads, whose
    model's code cannot be interrupted.
    """
    server.accepting, end = False, time.monotonic() + GRACE
    if number != signal.SIGINT:
        # The loop must no longer wait for the socket when it is closed.
        server.pull_trigger()
        time.sleep(0.1)
        server.socket.close()
    while number != signal.SIGINT and is_busy(server) and time.monotonic() < end:
        time.sleep(0.01)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if number == signal.SIGINT else 128 + number)


def is_busy(server: Any) -> bool:
    """Returns whether a request is being read or answered."""
    channels = list(server.active_channels.values())
    return any(channel.requests or channel.request or channel.total_outbufs_len for channel in channels)


def address_of(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Returns whether only this machine can connect."""
    return str(listening.getsockname()[0]).startswith(("127.", "::1"))
