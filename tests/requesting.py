"""Requests to the server's application, in this process."""

import json

from tf_transformer.decoding.search_options import SEARCH_OPTIONS

REQUEST = {name: option for name, option in SEARCH_OPTIONS.items() if option.request}
OPTIONS = {name: option.default for name, option in REQUEST.items()} | {"beam_size": 3, "max_length": 9}


def asking(client):
    """Returns a function that POSTs a body, JSON or bytes, and returns the status and the reply's JSON."""

    def ask(body, path="/v1/models/name:predict"):
        reply = client.post(path, data=body if isinstance(body, bytes) else json.dumps(body))
        assert reply.content_type == "application/json"
        return reply.status_code, json.loads(reply.data)

    return ask


def page(client):
    return client.get("/").get_data(as_text=True)
