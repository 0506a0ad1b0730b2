"""The server itself: who is served, in which order, on which address, and how it ends."""

import functools
import gzip
import http.client
import json
import logging
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace
from typing import ClassVar

import pytest

pytest.importorskip("waitress")

import numpy as np
import tensorflow as tf
from programs import ROOT, fails
from serving import PAIR, Slow, ask, post, raw, serve, with_signature
from test_documents import Words
from test_text_model import classifier, tagger
from werkzeug.test import Client

import tf_transformer as tt
from tf_transformer.extensions.server import app as server
from tf_transformer.extensions.server.model import AVERAGE, Limits, ServedModel
from tf_transformer.inference.turns import Turns
from trainers import serve as program


def test_a_long_request_does_not_hold_the_others():
    engine = Slow()
    port = serve(engine)
    long = threading.Thread(target=post, args=(port, "/translate", {"q": ["Two doors. " * 30]}))
    long.start()
    while not engine.batches:
        time.sleep(0.01)
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        assert post(port, "/translate", {"q": "a"})[0] == 200
        seconds.append(time.monotonic() - began)
    assert long.is_alive(), "the long request should take longer than the options"
    assert statistics.median(seconds) < 5 * engine.seconds
    long.join()
    assert len(engine.batches) == 15 + 3


def size_of(texts):
    return len(texts) * max(len(text.encode()) for text in texts)


@pytest.mark.parametrize(
    "text",
    ["dog " * 8_000, "\u72d7" * 4_000, "a" * 32_000, "dog, " * 6_000, "\n".join(["dog " * 400] * 9), "dog. " * 2_000],
)
def test_a_turn_is_bounded_in_size(text):
    """A text without sentence ends has long pieces, of which few run in one turn."""
    engine = Slow()
    engine.batch_size, engine.seconds = 32, 0
    engine._replies, reply = lambda texts, request: reply(texts, request), engine._replies
    assert post(serve(engine), "/translate", {"q": text})[0] == 200
    sizes = [size_of(batch) for batch in engine.batches]
    assert all(size <= 32 * AVERAGE or len(batch) == 1 for size, batch in zip(sizes, engine.batches, strict=True))
    assert len(engine.batches) > 1


def test_rows_of_predict_run_in_turns_of_a_size(monkeypatch):
    """They come back in the order of the request, whatever their lengths."""
    seen, model = [], with_signature(Words())

    def graph(text, **options):
        seen.append([one.decode() for one in text.numpy()])
        return {"upper": tf.strings.upper(text), "option": tf.broadcast_to(options["option"], tf.shape(text))}

    model._loaded = SimpleNamespace(signatures={"serving_default": graph})
    texts = ["dog " * (count % 400) for count in range(7, 7_000, 77)]
    outputs = model._run("serving_default", {"text": tf.constant(texts), "option": tf.constant([3])})
    assert outputs["upper"].tolist() == [text.upper().encode() for text in texts] and set(outputs["option"]) == {3}
    assert all(size_of(batch) <= 32 * AVERAGE or len(batch) == 1 for batch in seen) and len(seen) > 3
    assert max(map(len, seen)) <= 32


def test_turns_are_in_order_of_arrival():
    turns, order, begin = Turns(), [], threading.Event()
    threads = [threading.Thread(target=turns.take, args=(begin.wait,))]
    threads += [threading.Thread(target=turns.take, args=(functools.partial(order.append, i),)) for i in range(7)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    assert not order
    begin.set()
    for thread in threads:
        thread.join()
    assert order == list(range(7))


@pytest.mark.parametrize("path", ["/translate", "/document"])
def test_the_work_of_a_client_that_has_left_is_dropped(path):
    engine = Slow()
    port = serve(engine)
    body = {"/translate": b'{"q": "%s"}', "/document": b'{"text": "%s"}'}[path] % (b"Two doors. " * 62)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        while not engine.batches:
            time.sleep(0.01)
    count = len(engine.batches)
    time.sleep(10 * engine.seconds)
    assert len(engine.batches) <= count + 2 < 31
    assert post(port, "/translate", {"q": "a"})[0] == 200


def test_only_requests_are_logged_not_what_they_have(caplog):
    caplog.set_level(logging.INFO, server.LOG.name)
    client = server.app(Words(), PAIR).test_client()
    client.post("/translate?q=secret&api_key=secret", json={"q": "secret", "api_key": "secret"})
    client.get("/secr%0Aet?secret")
    lines = caplog.messages
    assert re.fullmatch(r"127\.0\.0\.1 POST /translate 200 \d\.\d{3} s", lines[0])
    assert re.fullmatch(r"127\.0\.0\.1 GET /secr%0Aet 404 \d\.\d{3} s", lines[1])
    assert len(lines) == 2


@pytest.mark.parametrize("path", ["/", "/v1/models/model", "/document"])
def test_foreign_names_reach_a_local_server_not_its_page(path):
    """A page at such a name, which its owner points at this machine, could read what it sends (DNS rebinding)."""
    for local in (True, False):
        client = server.app(Words(), PAIR, None, local).test_client()
        ask = client.post if path == "/document" else client.get
        for host in ("evil.example", "127.0.0.1.evil.example:5000", "localhost.", "[::2]", "[", "10.0.0.1"):
            response = ask(path, json={"text": "a"}, headers={"Host": host})
            rejected = response.status_code == 400 and "is not trusted" in response.get_json()["error"]
            assert rejected == local, host
        for host in ("localhost", "LOCALHOST:5000", "127.0.0.1:5000", "[::1]:5000"):
            assert ask(path, json={"text": "a"}, headers={"Host": host}).status_code == 200, host
        assert client.get("/languages", headers={"Host": "evil.example"}).status_code == 200


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("::1", "::1")])
def test_addresses_of_both_versions(host, address):
    with server.listen(host, 0) as listening:
        assert listening.getsockname()[0] == address and server.is_local(listening)
        assert server.address_of(listening).startswith("http://[::1]:" if ":" in host else "http://127.0.0.1:")


def test_a_name_of_both_versions_is_that_of_version_4(monkeypatch):
    kinds = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    addresses = [(family, socket.SOCK_STREAM, 0, "", (address, 0)) for family, address in kinds]
    monkeypatch.setattr(server.socket, "getaddrinfo", lambda *_, **__: addresses)
    with server.listen("name.example", 0) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_all_addresses_are_those_of_both_versions():
    with server.listen("::", 0) as listening:
        port = listening.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()
        assert not server.is_local(listening)
    with server.listen("0.0.0.0", 0) as listening:
        assert not server.is_local(listening)


def test_what_the_program_refuses(tmp_path, capsys):
    for options, message in [
        (["--port", 70_000], "--port: expected 0 to 65535, got 70000"),
        (["--host", ""], "--host: expected an address, got ''"),
        (["--host", "a..b"], "--host, --port: expected a free address of this machine, got a..b:5000"),
        (["--char-limit", 0], "--char-limit: expected a positive number, got 0"),
        (["--body-limit", -1], "--body-limit: expected a positive number, got -1"),
        (["--name", "a/b"], "--name: expected the name of a directory"),
        (["--port", 0], "nowhere"),
    ]:
        assert message in fails(program, ["nowhere", *options], capsys)
    with socket.create_server(("127.0.0.1", 0)) as taken:  # before it looks for the model
        assert "Address already in use" in fails(program, ["nowhere", "--port", taken.getsockname()[1]], capsys)


PROGRAM = """
import sys, time
from serving import Slow
from trainers import serve
from trainers.command import run_program

class Long(Slow):
    def _replies(self, texts, request):
        if "long" in str(texts):
            time.sleep(60)
        if "while" in str(texts):
            time.sleep(2)
        return super()._replies(texts, request)

serve.engine = lambda *args, **options: Long()
run_program(lambda: serve.main(["mine", "--port", "0", *sys.argv[1:]]))
"""


def started(*options):
    folders = [ROOT, *(ROOT / "tests" / name for name in (".", "extensions/server", "extensions/documents"))]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *options], env=env, **pipes)
    first, engine, address, last = (process.stdout.readline().strip() for _ in range(4))
    assert last == "Ctrl-C stops it", process.stderr.read()
    assert engine == "engine Long, 1 worker, at most 2 sentences per batch"
    return process, first, int(re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)", address)[1])


@pytest.mark.program
def test_ctrl_c_ends_it_while_it_works():
    process, first, port = started(
        "--char-limit", "97", "--verbose", "--source-language", "en", "--target-language", "de"
    )
    assert first == "mine, version 1: en to de, at most 97 characters, 1,000 texts, 4,194,304 bytes"

    def ask_long():
        with pytest.raises((OSError, http.client.HTTPException)):
            post(port, "/translate", {"q": "long"})

    busy = threading.Thread(target=ask_long)
    busy.start()
    assert ask(port, "GET", "/health?api_key=secret")[0] == 200
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(9) == 0 and time.monotonic() < began + 2
    busy.join()
    printed = process.stderr.read()
    assert (
        re.search(r"^127\.0\.0\.1 GET /health 200 \d\.\d{3} s\n\Z", printed, re.MULTILINE) and "secret" not in printed
    )


@pytest.mark.program
def test_sigterm_answers_what_is_under_way():
    process, _, port = started("--source-language", "en", "--target-language", "de")
    replies = []
    texts = ["while", "after it", "b"]  # The others wait for the first.
    threads = [
        threading.Thread(target=lambda text=text: replies.append(post(port, "/translate", {"q": text})))
        for text in texts
    ]
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    kept.request("GET", "/health")
    assert kept.getresponse().read()
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    kept.request("POST", "/translate", b'{"q": "late"}', {"Content-Type": "application/json"})
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=9)
    late = kept.getresponse()
    assert late.status == 200 and late.getheader("Connection") == "close" and json.loads(late.read())
    for thread in threads:
        thread.join()
    assert sorted(replies, key=str) == [
        (200, {"translatedText": text.upper()}) for text in sorted(texts, key=str.upper)
    ]
    assert process.wait(9) == 143
    assert "Traceback" not in process.stderr.read()


def test_what_is_served_is_called_before():
    """Whatever the limits: the best output, the n best of few and of many beams, and alignments."""

    class Recording(Words):
        called: ClassVar = []
        options: ClassVar = {"beam_size": 4}

        def _replies(self, texts, request):
            self.called.append((request.n, request.options.get("beam_size")))
            return super()._replies(texts, request)

        def _aligned(self, texts, request):
            self.called.append("aligned")
            return super()._aligned(texts, request)

    limits = server.Limits(requests=1)
    model = ServedModel(Recording(aligns=True))
    flask = server.app(model, PAIR, limits)
    server.warm_up(flask, model)
    assert {(None, None), (None, 4), (2, 4), (8, 8), "aligned"} <= set(Recording.called)
    assert flask.test_client().post("/translate", json={"q": "a"}).status_code == 200


@pytest.mark.parametrize("kind", ["label", "labels"])
def test_a_model_of_another_kind_has_its_signatures_only(kind, tmp_path):
    """Their outputs are those of the graph in TensorFlow."""
    tokenizer = tt.Tokenizer.train_from_iterator(["Where is the red door?", "The old woman opens it."] * 53, 310)
    model = {"label": classifier, "labels": tagger}[kind](tokenizer.vocab_size)
    options = {"max_length": 19, "labels": ["a", "b", "c"], "by_word": kind == "labels"}
    tt.TextModel(model, tokenizer, **options).save(tmp_path / "kinds/7")
    model = ServedModel(tmp_path / "kinds")
    flask, texts = server.app(model), ["Where is it?", "a", "", "Two doors. " * 29]
    server.warm_up(flask, model)
    client = flask.test_client()
    graph = tf.saved_model.load(str(tmp_path / "kinds/7")).signatures["serving_default"]
    expected = [text.decode() for text in graph(text=tf.constant(texts))[kind].numpy()]
    rows = client.post("/v1/models/kinds:predict", json={"instances": texts}).get_json()["predictions"]
    assert [row[kind] for row in rows] == expected
    assert client.get("/v1/models/kinds/versions/7").status_code == client.get("/health").status_code == 200
    rules = [rule for rule in server.app(Words()).url_map.iter_rules() if rule.endpoint.startswith("libretranslate.")]
    addresses = [(("GET", "POST")["POST" in rule.methods], rule.rule) for rule in rules]
    for method, path in [("GET", "/"), ("POST", "/document"), *addresses]:
        response = client.open(path, method=method, json={"q": "a", "text": "a"})
        message = f"{path}: expected a translator, got another SavedModel. POST to /v1/models/kinds:predict"
        assert (response.status_code, response.get_json()) == (404, {"error": message})


def test_rows_that_run_in_parts_are_those_that_run_together(saved, monkeypatch):
    """The graph in TensorFlow runs all rows together."""
    served, turns = ServedModel(saved), []
    inputs = {"text": tf.constant(["a", "The old woman opens the red door.", "n_best", "Two doors.", ""] * 3)}
    defaults = served.signatures["translate"].defaults
    options = {name: tf.constant(tf.make_ndarray(defaults[name])) for name in defaults}
    expected = served.engine.engine.loaded.signatures["translate"](**inputs, **options)
    submitted = Turns._submitted
    monkeypatch.setattr(Turns, "_submitted", lambda self, part: turns.append(len(part.rows)) or submitted(self, part))
    served.turns.average = 1.25  # 40 bytes per turn
    outputs = served.predict("translate", inputs)
    assert len(turns) > 3 and max(turns) > 3
    for name, value in outputs.items():
        if value.dtype == object:
            assert (value == expected[name].numpy()).all(), name
        else:
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("size", [5 << 20, 20 << 20])
@pytest.mark.parametrize("client", ["http.client", "urllib", "chunks", "socket"])
def test_a_client_that_sends_all_before_it_reads_sees_413(size, client):
    port, body = serve(Words(), Limits(body=4 << 20)), b"a" * size
    address = f"http://127.0.0.1:{port}/translate"
    if client == "urllib":
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(address, body), timeout=20)
        status = error.value.code
    elif client == "socket":
        status, _ = raw(port, b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + body)
    else:
        sent = body if client == "http.client" else iter([body[: size // 2]] * 2)
        status, response, _ = ask(port, "POST", "/translate", sent)
        assert response["error"].startswith("Request Entity Too Large")
    assert status == 413
    assert ask(port, "GET", "/health")[0] == 200


def test_a_rejected_request_is_read_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(server, "DRAINED", 1 << 20)
    port = serve(Words(), Limits(body=99))
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n")
        with pytest.raises(OSError, match="reset|[Bb]roken pipe|aborted"):
            for _ in range(1_000):
                connection.sendall(b"a" * (1 << 20))


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip", "zstd", "x-gzip"])
@pytest.mark.parametrize("path", ["/translate", "/detect", "/document", "/v1/models/model:predict"])
def test_a_coded_body_is_415(coding, path):
    headers = {"Content-Encoding": coding, "Content-Type": "application/json", "Host": "localhost"}
    client = server.app(Words(), PAIR).test_client()
    response = client.post(path, data=gzip.compress(b'{"q": "a"}'), headers=headers)
    expected = f"expected a body without Content-Encoding, got {coding!r}"
    assert (response.status_code, response.get_json()) == (415, {"error": expected})
    for coding in ("identity", "Identity", ""):
        assert client.post("/detect", json={"q": "a"}, headers={"Content-Encoding": coding}).status_code == 200


@pytest.mark.parametrize("version", ["", "/versions/1", "/labels/stable"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_predict_takes_post(version, method):
    client = server.app(with_signature(Words()), PAIR).test_client()
    response = client.open(f"/v1/models/model{version}:predict", method=method)
    assert (
        response.status_code == 405 and "POST" in response.headers["Allow"] and "GET" not in response.headers["Allow"]
    )
    if not version:
        assert client.get("/v1/models/model").status_code == 200


def test_a_model_that_loads_is_503():
    loading, served = server.Loading(), server.app(Words(), PAIR)
    client = Client(loading)
    for method, path in (("GET", "/"), ("POST", "/translate"), ("GET", "/health"), ("GET", "/v1/models/model")):
        response = client.open(path, method=method)
        assert response.status_code == 503 and int(response.headers["Retry-After"]) > 0
        assert response.get_json() == (
            {"status": "loading"} if path == "/health" else {"error": "the model is loading"}
        )
    loading.app = served
    assert client.get("/health").get_json() == {"status": "ok"}


def test_metrics_count_requests_and_turns(monkeypatch):
    parser = pytest.importorskip("prometheus_client.parser")
    engine = Slow()
    engine.seconds = 0
    client = server.app(engine, PAIR).test_client()
    for body in ({"q": "a"}, {"q": ["b", "c", "d"]}, {"q": 7}):
        client.post("/translate", json=body)
    client.get("/a/made/up/path")
    response = client.get("/metrics")
    assert response.content_type.startswith("text/plain; version=")
    families = parser.text_string_to_metric_families(response.get_data(as_text=True))
    samples = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    counts = {
        tuple(labels): count for (name, *labels), count in samples.items() if name == "tf_transformer_requests_total"
    }
    assert counts == {("/translate", "200"): 2, ("/translate", "400"): 1, ("other", "404"): 1}
    assert samples[("tf_transformer_batch_sentences_sum",)] == 4
    assert samples[("tf_transformer_batch_sentences_count",)] == len(engine.batches) == 3
    assert samples[("tf_transformer_queue_batches",)] == 0 and samples[("tf_transformer_workers",)] == 1
    assert samples[("tf_transformer_request_seconds_count", "/translate")] == 3
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    without = server.app(Words(), PAIR).test_client().get("/metrics")
    assert without.status_code == 404 and 'pip install "tf-transformer[serve]"' in without.get_json()["error"]
