"""The server: one WSGI application for a model, its limits and errors, and the HTTP server that runs it."""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from flask import Flask, Response, g, request
from flask.json.provider import DefaultJSONProvider
from waitress.channel import HTTPChannel
from waitress.server import create_server
from waitress.task import ErrorTask
from werkzeug.exceptions import BadRequest, HTTPException

from tf_transformer.config import BadInput
from tf_transformer.extensions.server import libretranslate, predict
from tf_transformer.extensions.server.limits import Limits, Rates
from tf_transformer.extensions.server.model import ClientLeft, ServedModel, ServingError, client_left
from tf_transformer.inference.engine import Engine

LOG = logging.getLogger(__name__)
LOCAL = ("localhost", "127.0.0.1", "::1")
HTTP = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404, "RESOURCE_EXHAUSTED": 429}
THREADS, CONNECTIONS, SECONDS, HEADER = 64, 500, 60, 64 << 10
CLIENT_LEFT = 499  # nginx's status for it, which only the log shows
CORS = {  # of LibreTranslate's API, for any page
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": str(20 * 24 * 60 * 60),
}
DEEP = "expected JSON of few lists within each other, got too many"


class UnicodeJSON(DefaultJSONProvider):
    """JSON with letters as they are. Halves of surrogate pairs, which UTF-8 cannot encode, become question marks."""

    ensure_ascii, sort_keys = False, False

    def dumps(self, obj: Any, **kwargs: Any) -> str:
        return super().dumps(obj, **kwargs).encode("utf-8", "replace").decode()


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
    flask.json, flask.url_map.merge_slashes, flask.url_map.strict_slashes = UnicodeJSON(flask), False, False
    flask.config.update(MAX_CONTENT_LENGTH=limits.body, MAX_FORM_MEMORY_SIZE=limits.body)

    @flask.before_request
    def begin() -> Response | None:
        g.began = time.perf_counter()
        client_left.set(request.environ.get("waitress.client_disconnected") or (lambda: False))
        if request.method == "POST":
            rates.spend(request.remote_addr or "")
        return Response(status=204) if request.method == "OPTIONS" else None

    @flask.after_request
    def end(response: Response) -> Response:
        if request.blueprint != "predict":
            response.headers.update(CORS)
        path, seconds = quote(request.path[:200], safe="/:"), time.perf_counter() - g.began
        LOG.info("%s %s %s %s %.3f s", request.remote_addr, request.method, path, response.status_code, seconds)
        return response

    @flask.get("/health")
    def health() -> Any:
        return {"status": "ok"}

    flask.register_error_handler(Exception, answer_to)
    served_api = predict.routes(served, limits)
    if local:
        served_api.before_request(check_host)
    flask.register_blueprint(served_api)
    if served.engine:
        flask.register_blueprint(libretranslate.routes(served.engine, options or {}, limits, rates))
    return flask


def check_host() -> None:
    with contextlib.suppress(ValueError):
        if urlsplit(f"//{request.host}").hostname in LOCAL:
            return
    raise BadRequest(f"Host {request.host[:99]!r} is not trusted; expected one of {', '.join(LOCAL)}")


def answer_to(error: Exception) -> Any:
    """Returns the response of an error. The log omits its message, which may quote the text of the request."""
    if isinstance(error, HTTPException):
        headers = {name: value for name, value in error.get_headers() if name in ("Allow", "Retry-After")}
        return {"error": error.description}, error.code, headers
    if isinstance(error, ServingError):
        return {"error": error.message}, HTTP.get(error.code, 500)
    if isinstance(error, ClientLeft):
        return {"error": "the client has left"}, CLIENT_LEFT
    if isinstance(error, BadInput | RecursionError):
        return {"error": DEEP if isinstance(error, RecursionError) else str(error)}, 400
    where = "".join(traceback.format_tb(error.__traceback__))
    LOG.error("%s %s failed: %s\n%s", request.method, quote(request.path[:200], safe="/:"), type(error).__name__, where)
    return {"error": "internal error"}, 500


def warm_up(flask: Flask, model: ServedModel) -> None:
    """Calls each function of the server once, since first calls take seconds."""
    model.warm_up()
    languages = dict(zip(("source", "target"), model.engine.languages, strict=False)) if model.engine else {}
    for body in ({"alternatives": 1}, {"alternatives": libretranslate.MOST_ALTERNATIVES}, {"format": "html"}):
        # Different addresses, since the limit of requests must not apply.
        address = {"REMOTE_ADDR": f"warm-up {body}"}
        flask.test_client().post("/translate", json={"q": "A <b>b</b>.", **languages, **body}, environ_base=address)


class JSONErrorTask(ErrorTask):
    """Sends errors of HTTP, such as a body that is too large, in JSON, like the application."""

    def execute(self) -> None:
        error = self.request.error
        body = json.dumps({"error": f"{error.reason}: {error.body}"}).encode()
        self.status, self.content_length = f"{error.code} {error.reason}", len(body)
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        self.write(body)


class Channel(HTTPChannel):
    """A connection, which is closed if a request takes longer to arrive than `SECONDS`, even if bytes still come."""

    error_task_class = JSONErrorTask
    began = 0.0

    def received(self, data: bytes) -> bool:
        if self.request is None:
            self.began = time.monotonic()
        elif time.monotonic() > self.began + SECONDS:
            self.will_close = True
            return False
        return bool(super().received(data))


def listen(host: str, port: int) -> socket.socket:
    """Binds a port of an address or a name. IPv4 comes first. `::` means all addresses of both versions."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = min(addresses, key=lambda each: each[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, dualstack_ipv6=both)


def http_server(flask: Flask, listening: socket.socket, limits: Limits) -> Any:
    """Returns a server whose `run` does not return."""
    server = create_server(
        flask,
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


def stop(number: int, _: Any) -> None:
    """Ends this process on Ctrl-C or another signal.

    Threads run a model's code, which cannot be interrupted. Python would wait for them, and runtimes such as ONNX's
    would abort. The system closes the sockets.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if number == signal.SIGINT else 128 + number)


def address_of(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Returns whether only this machine can connect."""
    return str(listening.getsockname()[0]).startswith(("127.", "::1"))
