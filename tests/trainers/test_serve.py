"""LibreTranslate's API, asked by another project's client."""

import json
import threading
from urllib import error, request

import pytest
from test_documents import Words

from tf_transformer.config import BadInput
from trainers import serve

libretranslatepy = pytest.importorskip("libretranslatepy")


class Both(Words):
    """Of several languages; says which it was asked for."""

    languages = ("de", "en", "fr")
    options = {"max_source_length": 99, "beam_size": 4}  # noqa: RUF012

    def _replies(self, texts, request):
        spoken = "".join(f"{language}:" for language in request.languages.values())
        for reply in super()._replies(texts, request):
            texts = [f"{spoken}{reply.text}{'!' * k}" for k in range(request.n or 1)]
            yield reply._replace(hypotheses=tuple(reply.hypotheses[0]._replace(text=text) for text in texts))


def served(engine, **options):
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", 0, serve.app(engine, options), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.port}"


@pytest.fixture(scope="module")
def one_pair():
    engine = Words(str.upper)
    engine.metadata = {"source_language": "en", "target_language": "de"}
    server, address = served(engine)
    yield address
    server.shutdown()


@pytest.fixture(scope="module")
def several():
    server, address = served(Both(str.upper), source_language="en", target_language="de")
    yield address
    server.shutdown()


def post(address, body, kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = request.Request(address, data, {"Content-Type": kind})
    try:
        with request.urlopen(asked) as answer:
            return answer.status, json.load(answer)
    except error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_a_client_that_is_not_ours_translates(one_pair):
    client = libretranslatepy.LibreTranslateAPI(f"{one_pair}/")
    assert client.translate("Hello Dr. Smith. Write to {name}.", "en", "de") == "HELLO DR. SMITH. WRITE TO {name}."
    assert client.languages() == [{"code": "en", "name": "en", "targets": ["de"]}]
    with pytest.raises(error.HTTPError):
        client.translate("Hello", "fr", "de")
    with pytest.raises(error.HTTPError):
        client.detect("Hello")


def test_forms_lists_html_and_alternatives(one_pair, several):
    form = post(f"{one_pair}/translate", b"q=a+b&source=auto&target=de", "application/x-www-form-urlencoded")
    assert form == (200, {"translatedText": "A B"})
    asked = {"q": ["a.", "<b>b</b> c"], "source": "en", "target": "de", "format": "html"}
    assert post(f"{one_pair}/translate", asked)[1] == {"translatedText": ["A.", "<b>B</b> C"]}
    assert post(f"{several}/translate", {"q": "a", "source": "fr", "target": "en", "alternatives": 2})[1] == {
        "translatedText": "fr:en:A",
        "alternatives": ["fr:en:A!", "fr:en:A!!"],
    }
    asked = {"q": ["a\n", "Dr. Smith sleeps.", "Go on. Stop."], "alternatives": 1}  # by the rules of English
    assert post(f"{several}/translate", asked)[1]["alternatives"] == [["en:de:A!"], ["en:de:DR. SMITH SLEEPS.!"], []]
    assert post(f"{several}/translate", asked | {"format": "html"})[1]["alternatives"] == [[], [], []]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "expected q, source and target, in JSON or in a form, got no q"),
        (b"{", "expected q, source and target, in JSON or in a form, got no q"),
        ({"q": 1}, "q: expected a text or a list of texts, got something else"),
        ({"q": ["a", None]}, "q: expected a text or a list of texts, got something else"),
        ({"q": "a", "format": "pdf"}, "format: expected one of text, html, xml, srt, got pdf"),
        ({"q": "a", "target": "xx"}, "target: expected one of de, en, fr, got xx"),
        ({"q": "a", "source": "auto"}, "source: expected one of de, en, fr, got auto"),
        ({"q": "a", "source": ["en"]}, "source: expected one of de, en, fr, got ['en']"),
        ({"q": "a", "alternatives": "x"}, "alternatives: expected a whole number from 0 to below 2**31, got 'x'"),
    ],
)
def test_a_bad_request_is_one_line(several, body, message):
    assert post(f"{several}/translate", body) == (400, {"error": message})


def test_nobody_says_the_languages():
    with pytest.raises(BadInput, match="^expected --source-language and --target-language, .*; got en$"):
        serve.app(Words())


def test_other_addresses_are_json_too(one_pair):
    assert post(f"{one_pair}/detect", {"q": "a"})[0] == 400
    assert post(f"{one_pair}/nothing", {})[0] == 404
    with request.urlopen(f"{one_pair}/health") as answer:
        assert json.load(answer) == {"status": "ok"} and answer.headers["Access-Control-Allow-Origin"] == "*"


def test_an_error_of_the_engine_is_said_without_its_inside():
    class Failing(Words):
        def _replies(self, texts, request):
            raise RuntimeError("secret")

    server, address = served(Failing(), target_language="de")
    assert post(f"{address}/translate", {"q": "a"}) == (500, {"error": "internal error"})
    server.shutdown()


def test_options_of_calls_reach_the_engine_and_a_bad_port_is_one_line(capsys):
    with pytest.raises(SystemExit):
        serve.main(["nowhere", "--port", "70000"])
    assert "--port: expected 0 to 65535, got 70000" in capsys.readouterr().err
    with pytest.raises(BadInput, match="nowhere"):
        serve.main(["nowhere", "--port", "0"])
