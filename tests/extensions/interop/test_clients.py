"""The clients and the README's examples, word for word, against a playground in a process of its own."""

import http.server
import importlib.util
import io
import json
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
from programs import run_python

from savedmodels.clients import rest

pytest.importorskip("flask")

ROOT = Path(__file__).parents[3]
README = (ROOT / "savedmodels" / "README.md").read_text(encoding="utf-8")
GRPC = importlib.util.find_spec("tensorflow_serving") is not None
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
needs_grpc = pytest.mark.skipif(not GRPC, reason="needs tensorflow-serving-api")
TEXT = "The old woman opens the red door."


@pytest.fixture(scope="module")
def places(saved):
    """The environment in which the examples find a playground in a process of its own, and the stand-in for gRPC."""
    command = [sys.executable, "-m", "savedmodels.playground", str(saved), "--name", "demo", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = ""
    while "Ctrl-C" not in printed and (line := process.stdout.readline()):
        printed += line
    host = re.search(r"http://(127.0.0.1:\d+)", printed)
    assert host, printed
    server, port = None, 0
    if GRPC:
        import grpc_server

        from savedmodels.playground.model import ServedModel

        server, port = grpc_server.serve(ServedModel(saved, "demo"))
    yield os.environ | {"HOST": host[1], "GRPC": f"127.0.0.1:{port}", "NAME": "demo"}
    if server:
        server.stop(None)
    process.terminate()
    process.wait()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder in which the README's paths and `python` mean ours."""
    folder = tmp_path_factory.mktemp("workplace")
    for name in ("benchmarks", "savedmodels"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "sentences.txt").write_text(f"{TEXT}\n\nTwo doors.\n")
    return folder


@pytest.fixture(scope="module")
def shell(places, workplace):
    def shell(script, status=0, **more):
        environment = places | {"PATH": f"{Path(sys.executable).parent}:{places['PATH']}"} | more
        found = subprocess.run(
            ["bash", "-euc", script], cwd=workplace, env=environment, capture_output=True, text=True, timeout=300
        )
        assert found.returncode == status, found.stderr + found.stdout
        return found.stdout if status == 0 else found.stderr

    return shell


def values_of(text):
    """The JSON values in a text, one after the other; lines that are no JSON are left out."""
    decoder, values = json.JSONDecoder(), []
    while "{" in text:
        text = text[text.index("{") :]
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


def form(value):
    """The keys, lengths and kinds in a JSON value."""
    if isinstance(value, dict):
        return {key: form(each) for key, each in value.items()}
    return [form(each) for each in value] if isinstance(value, list) else type(value).__name__


EXAMPLES = re.findall(r"```sh\n((?:(?!```).)*\$(?:HOST|GRPC).*?)```\n(?:\n```json\n(.*?)```)?", README, re.DOTALL)


def test_there_are_examples():
    assert len(EXAMPLES) >= 7 and sum(bool(answer) for _, answer in EXAMPLES) >= 4


@pytest.mark.program
@needs_curl
@pytest.mark.parametrize(("script", "answer"), EXAMPLES)
def test_the_readmes_examples_run_as_they_stand(shell, script, answer):
    setting = next(line for line in README.splitlines() if line.startswith("export HOST="))
    if not GRPC:
        script = "\n".join(line for line in script.splitlines() if "$GRPC" not in line)
    printed = shell(f"{setting}\n{script}")
    assert printed.strip()
    assert '"error"' not in printed
    if answer:
        assert [form(value) for value in values_of(printed)] == [form(value) for value in values_of(answer)]


@needs_grpc
def test_the_readmes_python_runs_as_it_stands(places, served, monkeypatch, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for name in ("GRPC", "NAME"):
        monkeypatch.setenv(name, places[name])
    exec(compile(program, "README.md", "exec"), {})
    expected = served({"text": ["The dog sleeps."], "beam_size": np.array([8], np.int32)}, "translate")
    assert capsys.readouterr().out == expected["translations"][0, 0].decode() + "\n"


@needs_curl
def test_curl(shell, served):
    said = 'She "opens" a\\the\tdoor.'
    answers = values_of(shell('sh savedmodels/clients/predict.sh "$TEXT"', TEXT=said))
    status, rows, columns, rows_of_two, columns_of_two, metadata = answers
    assert status["model_version_status"][0]["state"] == "AVAILABLE"
    expected = [text.decode() for text in served({"text": [said.replace("\t", " "), "Two doors."]})["translation"]]
    assert [row["translation"] for row in rows["predictions"]] == expected
    assert columns["outputs"]["translation"] == expected
    expected = served({"source": [said.replace("\t", " "), "Two doors."], "target": ["Zwei Hunde.", ""]}, "score")
    for name, values in expected.items():
        np.testing.assert_allclose([row[name] for row in rows_of_two["predictions"]], values, rtol=1e-4)
        np.testing.assert_allclose(columns_of_two["outputs"][name], values, rtol=1e-4)
    assert "translate" in metadata["metadata"]["signature_def"]["signature_def"]
    assert "404" in shell("sh savedmodels/clients/predict.sh", 22, NAME="other")
    assert "HOST=" in shell("sh savedmodels/clients/predict.sh --help")


@pytest.fixture(scope="module")
def expected(served):
    """The n best translations of sentences.txt, by the export's defaults: number, score and text of each."""
    found = served({"text": [TEXT, "", "Two doors."]}, "translate")
    return [
        [(i, score, text.decode()) for score, text in zip(*row, strict=True) if score > -1e8]
        for i, row in enumerate(zip(found["scores"], found["translations"], strict=True))
    ]


def n_best(printed, expected, n):
    """Whether the lines of a client are the first n of these."""
    lines = [line.split("\t") for line in printed.splitlines()]
    wanted = [each for row in expected for each in row[:n]]
    assert len(wanted) > n
    np.testing.assert_allclose([float(score) for _, score, _ in lines], [score for _, score, _ in wanted], atol=1e-3)
    return [(int(number), text) for number, _, text in lines] == [(number, text) for number, _, text in wanted]


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
        "--option beam=2 a": "error: HTTP 400: instances[0]: expected a row with beam_size, ",
        "--option beam_size=2.5 a": "error: HTTP 400: beam_size[0]: expected int32, got 2.5",
    }.items():
        assert shell(f"{program} {options}", status=1).startswith(message)
    assert "--option: invalid option value: 'beam_size'" in shell(f"{program} --option beam_size a", status=2)


def test_rest_asks_the_model_for_its_options(places, served, monkeypatch):
    client = rest.Client(places["HOST"])
    defaults = served.signatures["translate"][2]
    assert client.options() == pytest.approx({name: value[0] for name, value in defaults.items()})
    signatures = {"signature_def": {"signature_def": {"parse": {}}}}
    monkeypatch.setattr(client, "_ask", lambda what: {"metadata": signatures})
    with pytest.raises(LookupError, match="expected a translator's model, got one without the signature translate"):
        client.options()


def test_an_unknown_language_is_an_error(capsys, monkeypatch):
    """An answer to such a row has a score of 0, the best that there is."""
    answer = {"translations": ["", ""], "scores": [0.0, -1e9], "truncated": True, "source_length": 0}
    message = "expected languages that model_info lists for the key languages, got en or xx"
    monkeypatch.setattr(rest.Client, "options", lambda self: {"source_language": "en", "target_language": "de"})
    monkeypatch.setattr(rest.Client, "predict", lambda self, rows, signature: [answer for _ in rows])
    with pytest.raises(SystemExit, match=f"^error: {message}$"):
        rest.main(["--option", "target_language=xx", "a", "b"])
    assert capsys.readouterr().out == ""
    answer["truncated"] = False  # an empty text
    rest.main(["--option", "target_language=de", ""])
    assert capsys.readouterr().out == "0\t0.0000\t\n"
    if GRPC:
        from savedmodels.clients import grpc_client

        found = {"translations": np.array([[b""]]), "scores": np.array([[0.0]])}
        found |= {"truncated": np.array([True]), "source_length": np.array([0])}
        client = SimpleNamespace(predict=lambda *arguments: found)
        options = {"source_language": np.array([b"en"], object), "target_language": np.array([b"xx"], object)}
        with pytest.raises(LookupError, match=message):
            grpc_client.translate(client, ["a"], options)


@pytest.fixture
def busy():
    """A server that is busy twice before it answers, and its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        busy = (0, 1)  # which requests find it so
        asked = 0

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            ready = Handler.asked not in Handler.busy
            Handler.asked += 1
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
    """Both run their `main` by the same lines; gRPC takes seconds to start."""
    files = [ROOT / f"savedmodels/clients/{name}.py" for name in ("rest", "grpc_client")]
    assert len({file.read_text().partition("\nif __name__")[2] for file in files}) == 1
    command = '"$0" savedmodels/clients/rest.py --host localhost:1 --timeout 1 a '
    for closed in (">&-", "2>&-"):
        found = subprocess.run(["sh", "-c", command + closed, sys.executable], cwd=ROOT, capture_output=True)
        assert (found.returncode, found.stdout) == (1, b"")
        assert closed == "2>&-" or found.stderr.splitlines()[-1].startswith(b"error: ")


def test_rest_asks_a_busy_server_again(busy):
    handler, host = busy
    assert rest.Client(host).predict(["a"]) == [{"translation": "x"}]
    assert handler.asked == 3
    handler.busy = (3, 4)
    with pytest.raises(urllib.error.HTTPError, match="503"):
        rest.Client(host, retries=1).predict(["a"])
    assert handler.asked == 5


def test_rest_loses_no_line_when_a_server_goes(busy, monkeypatch, capsys):
    handler, host = busy
    handler.busy = range(2, 99)
    monkeypatch.setattr(rest.time, "sleep", lambda seconds: None)
    with pytest.raises(SystemExit, match="^error: HTTP 503: busy; 2 of 3 texts were translated$"):
        rest.main(["--host", host, "--batch-size", "1", "a", "b", "c"])
    assert capsys.readouterr().out == "x\nx\n"


@needs_grpc
def test_grpc(places, expected, served, monkeypatch, capsys):
    from savedmodels.clients import grpc_client

    def run(*argv):
        grpc_client.main(["--host", places["GRPC"], *argv])
        return capsys.readouterr().out

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"\ufeff{TEXT}\r\n\nTwo doors.\n".encode()), "ascii"))
    assert n_best(run("--batch-size", "2", "--n-best", "2"), expected, 2)  # no option: the defaults
    of_each = [f"--option={name}={value[0]}" for name, value in served.signatures["translate"][2].items()]
    assert run(*of_each, "door") == run("door")  # each option is the default
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
    import tensorflow as tf

    from savedmodels.clients import grpc_client

    values = (np.arange(6).reshape(2, 3) % 5).astype(bytes if dtype is object else dtype).astype(dtype)
    np.testing.assert_array_equal(tf.make_ndarray(grpc_client.proto(values)), values)
    for tensor in (tf.make_tensor_proto(values), grpc_client.proto(values)):  # in one field, and one by one
        found = grpc_client.array(tensor)
        np.testing.assert_array_equal(found, values)
        assert found.dtype == dtype
    assert grpc_client.proto(np.array(["ä"], object)).string_val == ["ä".encode()]
    assert grpc_client.array(grpc_client.proto(values[:0])).shape == (0, 3)


@needs_grpc
def test_grpc_runs_no_tensorflow():
    code = "import sys; from savedmodels.clients import grpc_client; print({'tensorflow', 'keras'} & set(sys.modules))"
    assert run_python(code) == "set()\n"


@needs_grpc
def test_grpc_loses_no_line_when_a_request_is_late(places, monkeypatch, capsys):
    """Every request has a deadline of its own, and what came before a failure was printed."""
    from savedmodels.clients import grpc_client

    timeouts, predict = [], grpc_client.Client.predict

    def slow(client, signature, *arguments):
        timeouts.append(client.timeout)
        client.timeout = 1e-4 if timeouts.count(23) == 4 else 23  # the options, two batches, and one that is late
        return predict(client, signature, *arguments)

    monkeypatch.setattr(grpc_client.Client, "predict", slow)
    monkeypatch.setattr(grpc_client.time, "monotonic", iter(range(0, 1_000, 11)).__next__)
    texts = [f"{word} doors." for word in ("One", "Two", "Three", "Four", "Five", "Six", "Seven")]
    with pytest.raises(SystemExit, match=r"DEADLINE_EXCEEDED: .*; 4 of 7 texts were translated; raise --timeout"):
        grpc_client.main(["--host", places["GRPC"], "--timeout", "23", "--batch-size", "2", *texts])
    said = capsys.readouterr()
    assert [line.split("\t")[0] for line in said.out.splitlines()] == ["0", "1", "2", "3"]
    assert said.err.splitlines() == ["2 of 7 texts", "4 of 7 texts"]


def test_a_request_names_a_signature_and_its_outputs(saved):
    """Over gRPC, since REST returns all outputs."""
    import tensorflow as tf

    from savedmodels.playground.model import ServedModel, ServingError

    model, inputs = ServedModel(saved), {"text": tf.constant([TEXT, "a"])}
    assert model.predict("translate", inputs, ["scores", "lengths"]).keys() == {"scores", "lengths"}
    for name, outputs, message in (("no", (), "signature key"), ("translate", ("x",), "expected some of")):
        with pytest.raises(ServingError, match=message):
            model.predict(name, inputs, outputs)


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
