"""Tests the clients and the README's examples, word for word, with the server."""

import http.server
import importlib.util
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from programs import run_python

from savedmodels.clients import rest

make_server = pytest.importorskip("werkzeug.serving").make_server
pytest.importorskip("waitress")
from tf_transformer.extensions.server.app import app  # noqa: E402
from tf_transformer.extensions.server.model import ServedModel  # noqa: E402

ROOT = Path(__file__).parents[3]
README = (ROOT / "savedmodels" / "README.md").read_text(encoding="utf-8")
GRPC = importlib.util.find_spec("tensorflow_serving") is not None
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
needs_grpc = pytest.mark.skipif(not GRPC, reason="needs tensorflow-serving-api")
TEXT = "The old woman opens the red door."


@pytest.fixture(scope="module")
def model(saved):
    return ServedModel(saved, "demo")


@pytest.fixture(scope="module")
def served(model):
    """Returns a signature's outputs."""
    return lambda inputs, name: model.predict(name, {key: tf.constant(value) for key, value in inputs.items()})


@pytest.fixture(scope="module")
def environment(model):
    """Variables of the examples, for the server and a stand-in for gRPC."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    http_server = make_server("127.0.0.1", 0, app(model), threaded=True)
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    server, port = None, 0
    if GRPC:
        import grpc_server

        server, port = grpc_server.serve(model)
    yield os.environ | {"HOST": f"127.0.0.1:{http_server.port}", "GRPC": f"127.0.0.1:{port}", "NAME": "demo"}
    if server:
        server.stop(None)
    http_server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory in which the README's paths mean ours."""
    folder = tmp_path_factory.mktemp("folder")
    for name in ("benchmarks", "savedmodels"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "sentences.txt").write_text(f"{TEXT}\n\nTwo doors.\n")
    return folder


@pytest.fixture(scope="module")
def shell(environment, folder):
    path = f"{Path(sys.executable).parent}:{environment['PATH']}"

    def shell(script, status=0, **variables):
        variables = environment | {"PATH": path} | variables
        done = subprocess.run(
            ["bash", "-euc", script], cwd=folder, env=variables, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == status, done.stderr + done.stdout
        return done.stdout if status == 0 else done.stderr

    return shell


def values_of(text):
    """Returns the JSON values in a text, without other lines."""
    decoder, values = json.JSONDecoder(), []
    while "{" in text:
        text = text[text.index("{") :]
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


def form(value):
    """Replaces the leaves of a JSON value by their types."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    return [form(item) for item in value] if isinstance(value, list) else type(value).__name__


EXAMPLES = re.findall(r"```sh\n((?:(?!```).)*\$(?:HOST|GRPC).*?)```\n(?:\n```json\n(.*?)```)?", README, re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) >= 7 and sum(bool(output) for _, output in EXAMPLES) >= 4


@pytest.mark.program
@needs_curl
@pytest.mark.parametrize(("script", "output"), EXAMPLES)
def test_the_readmes_examples_run(shell, script, output):
    setting = next(line for line in README.splitlines() if line.startswith("export HOST="))
    if not GRPC:
        script = "\n".join(line for line in script.splitlines() if "$GRPC" not in line)
    script = script.replace("--seconds 5", "--seconds 0.5")
    printed = shell(f"{setting}\n{script}")
    assert printed.strip()
    assert '"error"' not in printed
    if output:
        assert [form(value) for value in values_of(printed)] == [form(value) for value in values_of(output)]


@needs_grpc
def test_the_readmes_python_runs(environment, served, monkeypatch, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for name in ("GRPC", "NAME"):
        monkeypatch.setenv(name, environment[name])
    exec(compile(program, "README.md", "exec"), {})
    expected = served({"text": ["The dog sleeps."], "beam_size": np.array([8], np.int32)}, "translate")
    assert capsys.readouterr().out == expected["translations"][0, 0].decode() + "\n"


@needs_curl
def test_curl(shell, served):
    text = 'She "opens" a\\the\tdoor.'
    responses = values_of(shell('sh savedmodels/clients/predict.sh "$TEXT"', TEXT=text))
    status, rows, columns, rows_of_two, columns_of_two, metadata = responses
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    sources = [text.replace("\t", " "), "Two doors."]
    expected = [text.decode() for text in served({"text": sources}, "serving_default")["translation"]]
    assert [row["translation"] for row in rows["predictions"]] == expected
    assert columns["outputs"]["translation"] == expected
    expected = served({"source": sources, "target": ["Zwei Hunde.", ""]}, "score")
    for name, values in expected.items():
        np.testing.assert_allclose([row[name] for row in rows_of_two["predictions"]], values, rtol=1e-4)
        np.testing.assert_allclose(columns_of_two["outputs"][name], values, rtol=1e-4)
    assert "translate" in metadata["metadata"]["signature_def"]["signature_def"]
    assert "404" in shell("sh savedmodels/clients/predict.sh", 22, NAME="other")
    assert "HOST=" in shell("sh savedmodels/clients/predict.sh --help")


@pytest.fixture(scope="module")
def expected(served):
    """Index, score and text of the n best translations of sentences.txt, with default options."""
    outputs = served({"text": [TEXT, "", "Two doors."]}, "translate")
    return [
        [(i, score, text.decode()) for score, text in zip(*row, strict=True) if score > -1e8]
        for i, row in enumerate(zip(outputs["scores"], outputs["translations"], strict=True))
    ]


def n_best(printed, expected, n):
    """Returns whether a client printed the first n of each row."""
    lines = [line.split("\t") for line in printed.splitlines()]
    best = [output for row in expected for output in row[:n]]
    assert len(best) > n
    np.testing.assert_allclose([float(score) for _, score, _ in lines], [score for _, score, _ in best], atol=1e-3)
    return [(int(i), text) for i, _, text in lines] == [(i, text) for i, _, text in best]


def test_rest(shell, expected):
    program = "python savedmodels/clients/rest.py --host $HOST"
    assert shell(f"{program} < sentences.txt").splitlines() == [row[0][2] for row in expected]
    assert n_best(shell(f"{program} --batch-size 2 --n-best 2 < sentences.txt"), expected, 2)
    short = shell(f"{program} --option max_length=1 --option beam_size=1 'Two doors.'").split("\t")
    assert short[0] == "0" and len(short[2]) < len(expected[-1][0][2])
    assert shell(f"{program} --version 1 ''") == "\n"

    for options, message in {
        "--name other a": "error: HTTP 404: Servable not found for request: Latest(other)",
        "--version 7 a": "error: HTTP 404: Servable not found for request: Specific(demo, 7)",
        "--version stable a": "error: HTTP 400: Unrecognized servable version label: stable",
        "--host localhost:1 a": "error: no response: ",
        "--timeout 0.0001 a": "error: no response: ",
        "--option beam=2 a": "error: HTTP 400: instances[0]: expected values for beam_size, ",
        "--option beam_size=2.5 a": "error: HTTP 400: beam_size: expected int32 in lists of one shape, got [2.5]",
    }.items():
        assert shell(f"{program} {options}", status=1).startswith(message)
    assert "--option: invalid option value: 'beam_size'" in shell(f"{program} --option beam_size a", status=2)


def defaults(model):
    protos = model.signatures["translate"].defaults
    return {name: tf.make_ndarray(proto).item() for name, proto in protos.items()}


def test_rest_requests_the_models_options(environment, model, monkeypatch):
    client = rest.Client(environment["HOST"])
    assert client.options() == pytest.approx(defaults(model))
    signatures = {"signature_def": {"signature_def": {"parse": {}}}}
    monkeypatch.setattr(client, "_ask", lambda path: {"metadata": signatures})
    with pytest.raises(LookupError, match="expected a translator's model, got one without the signature translate"):
        client.options()


def test_an_unknown_language_is_an_error(capsys, monkeypatch):
    """Such a row has a score of 0, the maximum."""
    output = {"translations": ["", ""], "scores": [0.0, -1e9], "truncated": True, "source_length": 0}
    message = "expected languages that model_info lists for the key languages, got en or xx"
    monkeypatch.setattr(rest.Client, "options", lambda self: {"source_language": "en", "target_language": "de"})
    monkeypatch.setattr(rest.Client, "predict", lambda self, rows, signature: [output for _ in rows])
    with pytest.raises(SystemExit, match=f"^error: {message}$"):
        rest.main(["--option", "target_language=xx", "a", "b"])
    assert capsys.readouterr().out == ""
    output["truncated"] = False  # an empty text
    rest.main(["--option", "target_language=de", ""])
    assert capsys.readouterr().out == "0\t0.0000\t\n"
    if GRPC:
        from savedmodels.clients import grpc_client

        outputs = {"translations": np.array([[b""]]), "scores": np.array([[0.0]])}
        outputs |= {"truncated": np.array([True]), "source_length": np.array([0])}
        client = SimpleNamespace(predict=lambda *arguments: outputs)
        options = {"source_language": np.array([b"en"], object), "target_language": np.array([b"xx"], object)}
        with pytest.raises(LookupError, match=message):
            grpc_client.translate(client, ["a"], options)


@pytest.fixture
def busy():
    """A server that is busy for two requests, and its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        busy = (0, 1)  # indices of requests
        requests = 0

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            ready = Handler.requests not in Handler.busy
            Handler.requests += 1
            body = b'{"predictions": [{"translation": "x"}]}' if ready else b'{"error": "busy"}'
            self.send_response(200 if ready else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Handler, f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_client_whose_output_is_closed():
    """Only REST's runs, since gRPC takes seconds to start. Both end with the same lines."""
    files = [ROOT / f"savedmodels/clients/{name}.py" for name in ("rest", "grpc_client")]
    assert len({file.read_text().partition("\nif __name__")[2] for file in files}) == 1
    command = '"$0" savedmodels/clients/rest.py --host localhost:1 --timeout 1 a '
    for closed in (">&-", "2>&-"):
        done = subprocess.run(["sh", "-c", command + closed, sys.executable], cwd=ROOT, capture_output=True)
        assert (done.returncode, done.stdout) == (1, b"")
        assert closed == "2>&-" or done.stderr.splitlines()[-1].startswith(b"error: ")


def test_rest_retries_a_busy_server(busy):
    handler, host = busy
    assert rest.Client(host).predict(["a"]) == [{"translation": "x"}]
    assert handler.requests == 3
    handler.busy = (3, 4)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        rest.Client(host, retries=1).predict(["a"])
    assert handler.requests == 5


def test_rest_loses_no_line_if_a_server_fails(busy, monkeypatch, capsys):
    handler, host = busy
    handler.busy = range(2, 99)
    monkeypatch.setattr(rest.time, "sleep", lambda seconds: None)
    with pytest.raises(SystemExit, match="^error: HTTP 503: busy; 2 of 3 texts were translated$"):
        rest.main(["--host", host, "--batch-size", "1", "a", "b", "c"])
    assert capsys.readouterr().out == "x\nx\n"


@needs_grpc
def test_grpc(environment, expected, model, monkeypatch, capsys):
    from savedmodels.clients import grpc_client

    def run(*argv):
        grpc_client.main(["--host", environment["GRPC"], *argv])
        return capsys.readouterr().out

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"\ufeff{TEXT}\r\n\nTwo doors.\n".encode()), "ascii"))
    assert n_best(run("--batch-size", "2", "--n-best", "2"), expected, 2)  # default options
    options = [f"--option={name}={value}" for name, value in defaults(model).items()]
    assert run(*options, "door") == run("door")
    short = run("--option", "length_penalty=0", "--option", "max_length=2", "--option", "beam_size=1", "door")
    assert short.startswith("0\t") and short != run("door")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\n")))
    for argv, message in (
        ("--option beam=2 a", "--option: expected one of .*beam_size.*; got beam"),
        ("--option beam_size=2.5 a", "beam_size: expected int32, got 2.5"),
        ("--option beam_size=true a", "beam_size: expected int32, got True"),
        ("--name other a", r"NOT_FOUND: Servable not found for request: Latest\(other\); 0 of 1 texts were translated"),
        ("--version 7 a", r"NOT_FOUND: Servable not found for request: Specific\(demo, 7\); 0 of 1 .*"),
        ("--version canary a", "INVALID_ARGUMENT: Unrecognized servable version label: canary; 0 of 1 .*"),
        ("--timeout 0.001 a", "DEADLINE_EXCEEDED: Deadline Exceeded; 0 of 1 .*; raise --timeout or lower --batch-size"),
        ("--name demo", "'utf-8' codec can't decode byte 0xe9 .*"),
    ):
        with pytest.raises(SystemExit) as raised:
            run(*argv.split())
        assert re.fullmatch(f"error: {message}", raised.value.code)


@needs_grpc
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", object])
def test_grpc_sends_tensorflow_s_tensors(dtype):
    from savedmodels.clients import grpc_client

    values = (np.arange(6).reshape(2, 3) % 5).astype(bytes if dtype is object else dtype).astype(dtype)
    np.testing.assert_array_equal(tf.make_ndarray(grpc_client.proto(values)), values)
    for tensor in (tf.make_tensor_proto(values), grpc_client.proto(values)):  # in one field or one by one
        output = grpc_client.array(tensor)
        np.testing.assert_array_equal(output, values)
        assert output.dtype == dtype
    assert grpc_client.proto(np.array(["ä"], object)).string_val == ["ä".encode()]
    assert grpc_client.array(grpc_client.proto(values[:0])).shape == (0, 3)


@needs_grpc
def test_grpc_runs_no_tensorflow():
    code = "import sys; from savedmodels.clients import grpc_client; print({'tensorflow', 'keras'} & set(sys.modules))"
    assert run_python(code) == "set()\n"


@needs_grpc
def test_grpc_loses_no_line_if_a_request_is_late(environment, monkeypatch, capsys):
    """Each request has a separate deadline, and outputs before a failure are printed."""
    from savedmodels.clients import grpc_client

    timeouts, predict = [], grpc_client.Client.predict

    def slow(client, signature, *arguments):
        timeouts.append(client.timeout)
        client.timeout = 1e-4 if timeouts.count(23) == 4 else 23  # options, two batches, a late one
        return predict(client, signature, *arguments)

    monkeypatch.setattr(grpc_client.Client, "predict", slow)
    monkeypatch.setattr(grpc_client.time, "monotonic", iter(range(0, 1_000, 11)).__next__)
    texts = [f"{word} doors." for word in ("One", "Two", "Three", "Four", "Five", "Six", "Seven")]
    with pytest.raises(SystemExit, match=r"DEADLINE_EXCEEDED: .*; 4 of 7 texts were translated; raise --timeout"):
        grpc_client.main(["--host", environment["GRPC"], "--timeout", "23", "--batch-size", "2", *texts])
    printed = capsys.readouterr()
    assert [line.split("\t")[0] for line in printed.out.splitlines()] == ["0", "1", "2", "3"]
    assert printed.err.splitlines() == ["2 of 7 texts", "4 of 7 texts"]


@needs_grpc
def test_the_servers_configs_can_be_read():
    from google.protobuf import text_format
    from tensorflow_serving.config import model_server_config_pb2

    def read(text):
        (model,) = text_format.Parse(text, model_server_config_pb2.ModelServerConfig()).model_config_list.config
        assert (model.name, model.model_platform) == (Path(model.base_path).name, "tensorflow")
        return model

    config = (ROOT / "savedmodels" / "models.config").read_text()
    model = read(config)  # a demo has one version
    assert not model.version_labels and not model.HasField("model_version_policy")
    model = read(re.sub(r"^( +)# (?=\w+ \{)", r"\1", config, flags=re.MULTILINE))
    assert set(model.version_labels) == {"stable", "canary"}
    assert set(model.version_labels.values()) <= set(model.model_version_policy.specific.versions)
