"""Servers of engines whose translations are known, and requests to them."""

import http.client
import json
import socket
import threading
import time

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from test_documents import Words

from tf_transformer.decoding.search_options import options_of
from tf_transformer.extensions.server import app as server
from tf_transformer.extensions.server.model import Limits, ServedModel

REQUEST = options_of("request")
OPTIONS = {name: option.default for name, option in REQUEST.items()} | {"beam_size": 3, "max_length": 9}
PAIR = {"source_language": "en", "target_language": "de"}


class Several(Words):
    """Translates into capital letters, behind the languages that it was asked for."""

    languages = ("de", "en", "fr")
    options = {"max_source_length": 99, "beam_size": 4}  # noqa: RUF012

    def __init__(self, *languages):
        super().__init__(str.upper)
        self.languages = languages or self.languages

    def _replies(self, texts, request):
        codes = "".join(f"{language}:" for language in request.languages.values())
        for reply in super()._replies(texts, request):
            texts = [f"{codes}{reply.text}{'!' * k}" for k in range(request.n or 1)]
            yield reply._replace(hypotheses=tuple(reply.hypotheses[0]._replace(text=text) for text in texts))


class Slow(Words):
    """Takes its time for each batch of two sentences. `batches` are those that it has translated."""

    batch_size, seconds = 2, 0.07

    def __init__(self):
        super().__init__(str.upper)
        self.batches = []

    def _replies(self, texts, request):
        time.sleep(self.seconds)
        self.batches.append(list(texts))
        return list(super()._replies(texts, request))


def with_signature(engine):
    """Returns a served model that has the signature of a SavedModel, but nothing to run it."""
    model, signature = ServedModel(engine), meta_graph_pb2.SignatureDef()
    signature.inputs["text"].dtype = tf.string.as_datatype_enum
    model.signatures["serving_default"] = signature
    return model


def serve(engine, limits=None, **options):
    """Starts the program's server of an engine, which ends with the tests, and returns its port."""
    limits = limits or Limits()
    listening = server.listen("127.0.0.1", 0)
    running = server.http_server(server.app(engine, options or PAIR, limits), listening, limits)
    threading.Thread(target=running.run, daemon=True).start()
    return listening.getsockname()[1]


def post(port, path, body, kind="application/json"):
    """Returns the status and the JSON of a response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(port, "POST", path, data, {"Content-Type": kind})[:2]


def ask(port, method, path, body=None, headers=None):
    """Returns the status, the JSON and the headers of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None, response.headers
    finally:
        connection.close()


def raw(port, request):
    """Returns the status and the JSON of the response to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status, json.loads(response.read())


def asking(client):
    """Returns a function that POSTs a body, JSON or bytes, and returns the status and the JSON of the response."""

    def ask(body, path="/v1/models/name:predict"):
        response = client.post(path, data=body if isinstance(body, bytes) else json.dumps(body))
        assert response.content_type == "application/json"
        return response.status_code, json.loads(response.data)

    return ask


def page(client):
    return client.get("/").get_data(as_text=True)
