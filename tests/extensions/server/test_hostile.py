"""Hostile requests: each has its status and one line of JSON, and none stops the server."""

import json

import pytest

pytest.importorskip("waitress")

from serving import ask, raw, serve, with_signature
from test_documents import Words

from tf_transformer.extensions.server.model import Limits

BODY = 300_000
DEEP = 100_000
PATHS = ("/translate", "/detect", "/document", "/v1/models/model:predict")
NO_JSON = {
    "empty": b"",
    "half": b'{"q": "a"',
    "two": b'{"q": "a"} {}',
    "not UTF-8": b'{"q": "\xff\xfe"}',
    "UTF-16": '{"q": "a'.encode("utf-16"),
    "a comment": b'{"q": "a" /* b */}',
    "null": b"null",
    "a number": b"1",
    "NaN": b"NaN",
    "a text": b'"q"',
    "a list": b'["q"]',
    "no fields": b"{}",
    "other fields": b'{"Q": "a", "texts": ["a"]}',
    "deep lists": b"[" * DEEP,
    "deep objects": b'{"q":' * (BODY // 6),
    "deep and whole": b'{"q":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "300 dimensions": b'{"instances": ' + b"[" * 300 + b'"a"' + b"]" * 300 + b"}",
    "digits": b'{"q": ' + b"9" * 9_000 + b"}",
    "half a pair": b'{"q": "\\ud800", "text": 1, "instances": ["\\ud800"]}',
}
FIELDS = {
    "q": [None, 0, 1, True, {}, [], [1], ["a", None], [["a"]], "", float("nan")],
    "source": [1, ["en"], {"en": 1}, "xx", "e\0n", "en" * 999, "\n"],
    "target": [1, ["de"], "xx", "auto", "../de", "de de"],
    "format": [1, ["text"], "pdf", "HTML", "text\n"],
    "alternatives": ["x", [1], {}, "1e3", "--1", "9" * 5_000, float("nan"), float("inf")],
}
LOCAL = b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /translate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
HTTP = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "a NUL in a path": (b"GET /\0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "a NUL in a header": (b"GET /\r\nHost: local\0host\r\n\r\n", 400),
    "letters beyond ASCII": (b"GET /\xe4\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "no host": (b"GET /languages/x HTTP/1.1\r\n\r\n", 404),
    "a lone line feed": (b"GET / HTTP/1.1\nHost: localhost\n\n\r\n\r\n", 400),
    "a method that is none": (b"get /translate HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "another method": (b"DELETE /translate HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "GET of a POST": (b"GET /translate HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    "PUT of predict": (b"PUT /v1/models/model:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 405),
    "long header": (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    "long path": (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
    "a path upwards": (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    "a version of many digits": (b"GET /v1/models/model/versions/" + b"9" * 9_000 + LOCAL, 404),
    "a model of a long name": (b"GET /v1/models/" + b"a" * 9_000 + LOCAL, 404),
    "a model of two lines": (b"GET /v1/models/a%0Ab" + LOCAL, 404),
    "negative length": (b"POST /translate HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
    "two lengths": (b"POST /translate HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na", 400),
    "too large": (b"POST /translate HTTP/1.1\r\nContent-Length: 999999999\r\n\r\na", 413),
    "an unknown coding": (b"POST /translate HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\na", 501),
    "a chunk without size": (
        CHUNKED + b"xyz\r\na\r\n0\r\n\r\n",
        400,
    ),
    "a chunk without end": (
        CHUNKED + b"1\r\nabc\r\n0\r\n\r\n",
        400,
    ),
    "chunks, too large": (CHUNKED + b"61a80\r\n" + b"a" * 400_000 + b"\r\n0\r\n\r\n", 413),
}
FORM = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b'
MULTIPART = {
    "no parts": (b"", "multipart/form-data; boundary=b"),
    "no boundary": (FORM % (b"q", b"a") + b"\r\n--b--\r\n", "multipart/form-data"),
    "no end": (FORM % (b"q", b"a"), "multipart/form-data; boundary=c"),
    "many parts": (FORM % (b"x", b"a\r\n") * 2_000 + b"--b--\r\n", "multipart/form-data; boundary=b"),
    "another type": (b'{"q": "a"}', "text/plain"),
    "no type": (b'{"q": "a"}', ""),
    "XML": (b"<q>a</q>", "text/xml"),
    "q twice, badly": (b"q=&q=a", "application/x-www-form-urlencoded"),
}


@pytest.fixture(scope="module")
def port():
    return serve(with_signature(Words()), Limits(body=BODY), source_language="en", target_language="de")


def cases():
    """Names, requests and the statuses that they should have."""
    for path in PATHS:
        for name, body in NO_JSON.items():
            yield f"{path} {name}", (path, body, "application/json"), 400
    for field, values in FIELDS.items():
        for value in values:
            body = {"q": "a", "source": "en", "target": "de"} | {field: value}
            yield f"{field} {str(value)[:20]!r}", ("/translate", json.dumps(body).encode(), "application/json"), 400
    for name, (body, kind) in MULTIPART.items():
        yield name, ("/translate", body, kind), 413 if name == "many parts" else 400
    yield from ((name, request, status) for name, (request, status) in HTTP.items())


CASES = list(cases())


@pytest.mark.parametrize(("request_", "status"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_it_is_one_line_and_the_server_lives(port, request_, status):
    if isinstance(request_, bytes):
        got, body = raw(port, request_)
    else:
        path, body, kind = request_
        got, body, _ = ask(port, "POST", path, body, {"Content-Type": kind} if kind else {})
    assert (got, list(body)) == (status, ["error"]), body
    assert "\n" not in body["error"] and "Traceback" not in body["error"] and len(body["error"]) < 1_000
    assert ask(port, "GET", "/health")[:2] == (200, {"status": "ok"})


def test_there_are_about_a_hundred():
    assert len(CASES) >= 100
