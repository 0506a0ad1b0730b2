"""LibreTranslate's API, request_body by other projects' clients."""

import pytest

pytest.importorskip("waitress")

from serving import PAIR, Several, ask, post, serve, with_signature
from test_documents import Words

from tf_transformer.config import BadInput
from tf_transformer.extensions.server.libretranslate import Languages
from tf_transformer.extensions.server.model import Limits
from trainers.serve import app

FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def one_pair():
    return serve(Words(str.upper))


@pytest.fixture(scope="module")
def several():
    return serve(Several())


def test_a_client_that_is_not_ours_translates(one_pair):
    libretranslatepy = pytest.importorskip("libretranslatepy")
    client = libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{one_pair}/", api_key="secret")
    assert client.translate("Hello Dr. Smith. Write to {name}.", "en", "de") == "HELLO DR. SMITH. WRITE TO {name}."
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    (best, *_) = client.detect("Das ist ein altes Haus, und es hat keine Fenster.")
    assert best["language"] == "de" and 90 < best["confidence"] <= 100


def test_another_client_that_is_not_ours_translates(one_pair):
    """It sends its fields in the address."""
    deep_translator = pytest.importorskip("deep_translator")
    address = {"custom_url": f"http://127.0.0.1:{one_pair}/", "api_key": "secret"}
    client = deep_translator.LibreTranslator("English", "German", **address)
    assert client.translate("Two doors & a key.\nGo on.") == "TWO DOORS & A KEY.\nGO ON."
    with pytest.raises(deep_translator.exceptions.ServerException):
        deep_translator.LibreTranslator("English", "French", **address).translate("Two doors.")


def test_forms_lists_html_and_alternatives(one_pair, several):
    assert post(one_pair, "/translate", b"q=a+b&source=auto&target=de", FORM)[1]["translatedText"] == "A B"
    part = '--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    parts = (part * 3 + "--b--\r\n") % ("q", "a\r\nb", "source", "en", "target", "de")
    assert post(one_pair, "/translate", parts.encode(), "multipart/form-data; boundary=b")[1] == {
        "translatedText": "A\nB"
    }
    request_body = {"q": ["a.", "<b>b</b> c"], "source": "en", "target": "de", "format": "html"}
    assert post(one_pair, "/translate", request_body)[1] == {"translatedText": ["A.", "<b>B</b> C"]}
    assert post(several, "/translate", {"q": "a", "source": "fr", "target": "en", "alternatives": 2})[1] == {
        "translatedText": "fr:en:A",
        "alternatives": ["fr:en:A!", "fr:en:A!!"],
    }
    request_body = {"q": ["a\n", "Dr. Smith sleeps.", "Go on. Stop."], "alternatives": 1}  # by the rules of English
    assert post(several, "/translate", request_body)[1]["alternatives"] == [
        ["en:de:A!"],
        ["en:de:DR. SMITH SLEEPS.!"],
        [],
    ]
    assert post(several, "/translate", request_body | {"format": "html"})[1]["alternatives"] == [[], [], []]


SOURCES = {"en": "The old woman opens the red door.", "fr": "La vieille femme ouvre la porte rouge."}


def test_the_source_is_detected_among_the_models_languages(several, one_pair):
    request_body = {"source": "auto", "target": "de"}
    for code, text in SOURCES.items():
        status, response = post(several, "/translate", {"q": text, **request_body})
        assert (status, response["translatedText"]) == (200, f"{code}:de:{text.upper()}")
        assert response["detectedLanguage"]["language"] == code and response["detectedLanguage"]["confidence"] > 60
    texts = [SOURCES["fr"]] * 3
    detected = post(several, "/translate", {"q": texts, **request_body})[1]["detectedLanguage"]
    assert [each["language"] for each in detected] == ["fr"] * 3
    # A pair's target is no source, but may be detected.
    german = "Die alte Frau öffnet die rote Tür."
    assert post(one_pair, "/translate", {"q": german, **request_body})[1]["detectedLanguage"]["language"] == "en"
    assert [each["language"] for each in post(one_pair, "/detect", {"q": german})[1]][:1] == ["de"]
    assert post(one_pair, "/detect", {"q": "\N{GRINNING FACE}"})[0] == 200


@pytest.mark.parametrize(
    "text",
    ["123", "...", "\N{GRINNING FACE} 7", "12.5 % (+3)", "https://example.com/der/die/das", "{name}: %s"],
)
@pytest.mark.parametrize(
    ("languages", "server_language"), [(("sr", "en"), "en"), (("en", "sr"), "sr"), (("de", "fr"), "en")]
)
def test_a_text_without_words_has_the_servers_language(text, languages, server_language):
    """Or the model's first, if the server has none."""
    known = Languages(Several(*languages), {"source_language": server_language})
    expected = server_language if server_language in languages else languages[0]
    for sources in (True, False):
        assert known.detected(text, sources) == [(expected, 0.0)]
    client = app(Several(*languages), dict(zip(PAIR, languages, strict=True))).test_client()
    body = {"q": f"<p>{text}</p>", "format": "html", "source": "auto", "target": languages[1]}
    assert client.post("/translate", json=body).get_json()["detectedLanguage"]["language"] == languages[0]


@pytest.mark.parametrize("listed", ["en, de", "de,en"])
def test_a_card_of_two_languages_is_a_pair(listed):
    """It does not tell the direction, which a request names."""
    engine = Words(str.upper)
    engine.metadata = {"languages": listed}
    client = app(engine).test_client()
    assert {one["code"] for one in client.get("/languages").get_json()} == {"en", "de"}
    body = {"q": "Two doors.", "source": "en", "target": "de"}
    assert client.post("/translate", json=body).get_json() == {"translatedText": "TWO DOORS."}
    for missing in ("source", "target"):
        response = client.post("/translate", json={name: value for name, value in body.items() if name != missing})
        assert (response.status_code, response.get_json()["error"]) == (
            400,
            f"Invalid request: missing {missing} parameter",
        )
    assert client.post("/translate", json=body | {"target": "fr"}).status_code == 400


@pytest.mark.parametrize("listed", ["en", "en, de, fr", ["en", "de"], 7, None])
def test_a_card_of_other_languages_names_no_pair(listed):
    engine = Words()
    engine.metadata = {"languages": listed}
    response = app(engine).test_client().post("/translate", json={"q": "a", "source": "en", "target": "de"})
    assert response.status_code == 404 and "--source-language" in response.get_json()["error"]


@pytest.mark.parametrize("kind", [FORM, "text/plain", "", "application/octet-stream", FORM + "; charset=utf-8"])
@pytest.mark.parametrize("path", ["/translate", "/detect"])
def test_json_needs_its_header(path, kind, one_pair):
    for body in (b' {"q": "a=b&c"}', b'\xef\xbb\xbf{"q": "a"}', b'\n[{"q": "a"}]'):
        status, response = post(one_pair, path, body, kind)
        assert status == 400 and response["error"].startswith("expected a form, got JSON as ")
        assert response["error"].endswith("Send Content-Type: application/json") and "\n" not in response["error"]


def test_languages_that_no_text_is_detected_in(several):
    port = serve(Words(), source_language="xx", target_language="yy")
    assert post(port, "/detect", {"q": "a"}) == (200, [{"confidence": 0.0, "language": "xx"}])


@pytest.mark.parametrize(
    ("known", "code", "meant_code"),
    [
        (("en", "de", "zh"), "zh-Hans", "zh"),
        (("en", "de"), "EN", "en"),
        (("en", "de"), "en-US", "en"),
        (("en", "de"), "eng_Latn", "en"),
        (("eng_Latn", "zho_Hans", "zho_Hant"), "en", "eng_Latn"),
        (("eng_Latn", "zho_Hans", "zho_Hant"), "zh-Hant", "zho_Hant"),
        *[
            (("eng_Latn", "zho_Hans", "zho_Hant"), code, "zho_Hans")
            for code in ("zh", "zh-CN", "zh_cn", "ZH-SG", "cmn")
        ],
        *[
            (("eng_Latn", "zho_Hant", "zho_Hans"), code, "zho_Hant")
            for code in ("zh-TW", "zh-HK", "zh-mo", "zt", "zh-CHT")
        ],
        (("eng_Latn", "zho_Hans", "zho_Hant"), "zh-Hant-CN", "zho_Hant"),
        (("eng_Latn", "zho_Hans", "zho_Hant"), "zh-Latn", None),
        (("en", "zh"), "zh-TW", "zh"),
        (("arb_Arab", "arb_Latn"), "ar-EG", "arb_Arab"),
        (("kas_Arab", "kas_Deva"), "ks", "kas_Arab"),
        (("taq_Latn", "taq_Tfng"), "taq", "taq_Latn"),
        (("knc_Arab", "knc_Latn"), "knc", "knc_Latn"),
        (("eng_Latn", "por_Latn"), "pb", "por_Latn"),
        (("en", "pt"), "pt-BR", "pt"),
        (("en", "he", "id"), "iw", "he"),
        (("eng_Latn", "nob_Latn", "nno_Latn"), "nn-NO", "nno_Latn"),
        (("en", "de"), "xx", None),
    ],
)
def test_codes_may_be_written_otherwise(known, code, meant_code):
    client = app(Several(*known), dict.fromkeys(PAIR, known[0])).test_client()
    response = client.post("/translate", json={"q": "a", "source": code, "target": known[0]})
    translated, rejected = {"translatedText": f"{meant_code}:{known[0]}:A"}, {"error": f"{code} is not supported"}
    assert (response.status_code, response.get_json()) == ((200, translated) if meant_code else (400, rejected))


def test_each_language_of_the_families_has_its_english_name():
    """By the names of another project, for the codes that it has."""
    constants = pytest.importorskip("deep_translator.constants")
    from tf_transformer.extensions.interop.families.m2m100.family import M2M100, NLLB
    from tf_transformer.extensions.server.libretranslate import NAMES, name_of, short

    codes = M2M100.split()
    assert set(codes) <= set(NAMES)
    theirs = {code: name for name, code in constants.GOOGLE_LANGUAGES_TO_CODES.items()}
    ours = {code: name_of(code, codes).lower() for code in codes if code in theirs}
    different = {code: name for code, name in ours.items() if name not in theirs[code]}
    assert len(ours) > 80 and len(different) < 9, different
    assert sum(short(code) in NAMES for code in NLLB.split()) > 110
    assert name_of("zho_Hant", ["zho_Hans", "zho_Hant"]) == "Chinese (zho_Hant)"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Invalid request: missing q parameter"),
        (b"{", "expected JSON, got something else: Expecting property name enclosed in double quotes: line 1 column 2"),
        ({"q": 1}, "Invalid request: q parameter is not a text or a list of texts"),
        ({"q": "a", "format": "pdf"}, "pdf format is not supported"),
        ({"q": "a", "source": ["en"]}, '["en"] is not supported'),
        ({"q": "a", "alternatives": "x"}, "Invalid request: alternatives parameter is not a number"),
    ],
)
def test_a_bad_request_is_named_as_by_libretranslate(several, body, message):
    status, response = post(several, "/translate", body)
    assert status == 400 and response["error"].startswith(message)


def test_limits_are_checked_before_any_work():
    class Unused(Words):
        def _replies(self, texts, request):
            raise AssertionError("work")

    port = serve(with_signature(Unused()), Limits(chars=7, batch=3, body=997))
    too_long = (400, {"error": "Invalid request: request (8) exceeds text limit (7)"})
    too_many = (400, {"error": "Invalid request: request (4) exceeds text limit (3)"})
    for path in ("/translate", "/detect"):
        assert post(port, path, {"q": "a" * 8}) == too_long
        assert post(port, path, {"q": ["a"] * 4}) == too_many
        assert post(port, path, {"q": "a" * 1_000})[0] == 413
    assert post(port, "/document", {"text": "ä" * 8}) == too_long
    assert post(port, "/v1/models/model:predict", {"instances": ["a", "ä" * 8]}) == too_long
    assert post(port, "/v1/models/model:predict", {"inputs": {"text": ["a"] * 4}}) == too_many
    assert ask(port, "GET", "/frontend/settings")[1]["charLimit"] == 7


def test_a_client_has_so_many_requests_a_minute(monkeypatch):
    from tf_transformer.extensions.server import model

    now = [1_000.0]
    monkeypatch.setattr(model.time, "monotonic", lambda: now[0])
    client = app_of(Words(), Limits(requests=5))
    request_body = lambda body, address: client.post("/translate", json=body, environ_base={"REMOTE_ADDR": address})  # noqa: E731
    assert request_body({"q": ["a"] * 3}, "10.0.0.1").status_code == 200  # counts three times
    now[0] += 23
    assert [request_body({"q": "a"}, "10.0.0.1").status_code for _ in range(3)] == [200, 200, 429]
    rejected = request_body({"q": "a"}, "10.0.0.1")
    assert (rejected.get_json(), rejected.headers["Retry-After"]) == ({"error": "Slowdown: 5 per 1 minute"}, "37")
    assert request_body({"q": "a"}, "10.0.0.2").status_code == 200
    assert client.get("/languages", environ_base={"REMOTE_ADDR": "10.0.0.1"}).status_code == 200
    now[0] += 37
    assert request_body({"q": "a"}, "10.0.0.1").status_code == 200


def app_of(engine, limits=None, **others):
    from tf_transformer.extensions.server.app import app as of_server

    return of_server(engine, PAIR, limits, **others).test_client()


def test_other_addresses_and_other_pages(one_pair):
    assert post(one_pair, "/nothing", {})[0] == 404
    for path in ("/translate", "/languages"):
        status, body, headers = ask(one_pair, "OPTIONS", path, headers={"Origin": "https://a.example"})
        assert (status, body) == (204, None)
        assert headers["Access-Control-Allow-Origin"] == "*" and int(headers["Access-Control-Max-Age"]) > 86_000
        assert {"GET", "POST"} <= set(headers["Access-Control-Allow-Methods"].split(", "))
        assert "Content-Type" in headers["Access-Control-Allow-Headers"]
    status, spec, headers = ask(one_pair, "GET", "/spec")
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "*" and spec["swagger"] == "2.0"
    for path, methods in spec["paths"].items():
        for method in methods:
            assert ask(one_pair, method.upper(), path)[0] == (200 if method == "get" else 400)
    assert ask(one_pair, "GET", "/v1/models/model")[2]["Access-Control-Allow-Origin"] is None


def test_a_model_that_does_not_store_its_languages_has_no_such_api():
    engine = Words()
    engine.metadata = {}
    client = app(engine, {"target_language": "de"}).test_client()
    for method, path in (("POST", "/translate"), ("POST", "/detect"), ("GET", "/languages"), ("GET", "/spec")):
        error = client.open(path, method=method, json={"q": "a"}).get_json()["error"]
        expected = f"{path}: expected a model with languages, got one that does not store them. "
        assert error == f"{expected}Start the server with --source-language CODE --target-language CODE"
    assert client.get("/health").status_code == client.get("/").status_code == 200
    assert client.post("/document", json={"text": "a"}).get_json()["translations"] == ["a"]
    assert client.post("/v1/models/model:predict", json={"instances": ["a"]}).status_code == 404  # no SavedModel
    assert "const served = false, aligned = false" in client.get("/").get_data(as_text=True)


def test_bad_input_of_the_engine_is_told_and_another_error_neither_told_nor_logged_with_its_text(caplog):
    class Refusing(Words):
        def _replies(self, texts, request):
            raise BadInput("q: expected another text")

    response = app_of(Refusing()).post("/translate", json={"q": "a"})
    assert (response.status_code, response.get_json()) == (400, {"error": "q: expected another text"})

    class Failing(Words):
        def _replies(self, texts, request):
            raise RuntimeError(*texts)

    response = app_of(Failing()).post("/translate", json={"q": "private"})
    assert (response.status_code, response.get_json()) == (500, {"error": "internal error"})
    assert "RuntimeError" in caplog.text and "test_libretranslate.py" in caplog.text
    assert "private" not in caplog.text
