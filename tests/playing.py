"""Requests to the playground's application."""

import json


def asking(client):
    """A function that POSTs a body, JSON or bytes, and returns status and the answer's JSON."""

    def ask(body, path="/v1/models/name:predict"):
        answer = client.post(path, data=body if isinstance(body, bytes) else json.dumps(body))
        assert answer.content_type == "application/json"
        return answer.status_code, json.loads(answer.data)

    return ask


def page(client):
    return client.get("/").get_data(as_text=True)
