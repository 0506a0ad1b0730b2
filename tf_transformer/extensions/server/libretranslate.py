"""LibreTranslate's API, with its messages: https://github.com/LibreTranslate/LibreTranslate."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flask import Blueprint, abort, request

from tf_transformer.extensions.documents.document import FORMATS
from tf_transformer.extensions.documents.marked import Marked, sentences_in
from tf_transformer.extensions.server.languages import Detector, known_as, name_of
from tf_transformer.extensions.server.limits import Limits, Rates
from tf_transformer.extensions.server.model import InTurns
from tf_transformer.extensions.server.predict import parsed
from tf_transformer.tokenizers.languages import LANGUAGES
from tf_transformer.utils.version import __version__

MOST_ALTERNATIVES = 7  # plus the best translation fill a beam of 8
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
SURROGATES = range(0xD800, 0xE000)


class Languages:
    """The languages of a server's translator, and of its requests."""

    def __init__(self, engine: InTurns, options: Mapping[str, Any]) -> None:
        self.defaults = [str(options.get(name) or engine.metadata.get(name) or "") for name in LANGUAGES]
        self.sources, self.targets = ([*engine.languages] or [*filter(None, [code])] for code in self.defaults)
        self._detector = Detector([*dict.fromkeys([*self.sources, *self.targets])])

    def __str__(self) -> str:
        if len(self.sources) > 1:
            return f"{len(self.sources)} languages"
        return f"{self.defaults[0]} to {self.defaults[1]}" if self else "languages unknown"

    def __bool__(self) -> bool:
        return bool(self.sources and self.targets)

    def listed(self) -> list[dict[str, Any]]:
        return [{"code": code, "name": name_of(code, self.sources), "targets": self.targets} for code in self.sources]

    def of_request(self, side: str, code: Any) -> str:
        """Returns a model's code. `side` is source or target."""
        known = self.sources if side == "source" else self.targets
        code = code or self.defaults[side == "target"] or abort(400, f"Invalid request: missing {side} parameter")
        meant = known_as(code, known) if isinstance(code, str) else None
        return meant or abort(400, f"{shown(code)} is not supported")

    def detected(self, text: str, sources: bool) -> list[dict[str, Any]]:
        """Returns up to three languages of a text, best first: of the `sources`, or of all."""
        ranked = [(code, chance) for code, chance in self._detector.ranked(text) if not sources or code in self.sources]
        ranked = [pair for pair in ranked[:3] if pair[1]] or ranked[:1] or [(self.sources[0], 0.0)]
        return [{"confidence": chance, "language": code} for code, chance in ranked]


def routes(engine: InTurns, options: Mapping[str, Any], limits: Limits, rates: Rates) -> Blueprint:
    """Returns the API's addresses. The options are those of the engine's calls."""
    api, languages = Blueprint("libretranslate", __name__), Languages(engine, options)
    search = {name: value for name, value in options.items() if name not in LANGUAGES}

    @api.before_request
    def check_languages() -> None:
        if not languages:
            pair = "--source-language and --target-language"
            abort(404, f"expected a server with {pair}, since its model does not store them, got one without")

    @api.get("/languages")
    def listed() -> Any:
        return languages.listed()

    @api.get("/frontend/settings")
    def settings() -> Any:
        source, target = languages.sources[0], languages.defaults[1] or languages.targets[0]
        return {
            "charLimit": limits.chars,
            "frontendTimeout": 500,
            "apiKeys": False,
            "keyRequired": False,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {
                "source": {"code": source, "name": name_of(source, languages.sources)},
                "target": {"code": target, "name": name_of(target, languages.targets)},
            },
        }

    @api.get("/spec")
    def spec() -> Any:
        described = json.loads((Path(__file__).parent / "spec.json").read_text(encoding="utf-8"))
        return {**described, "info": {**described["info"], "version": __version__}}

    @api.post("/suggest")
    def suggest() -> Any:
        abort(403, "Suggestions are disabled on this server.")

    @api.post("/translate_file")
    def translate_file() -> Any:
        abort(403, "Files translation are disabled on this server.")

    @api.post("/detect")
    def detect() -> Any:
        texts, _ = texts_of(body_of_request())
        return languages.detected(" ".join(texts), sources=False)

    @api.post("/translate")
    def translate() -> Any:
        body = body_of_request()
        texts, several = texts_of(body)
        kind = body.get("format") or "text"
        if kind not in FORMATS:
            abort(400, f"{shown(kind)} format is not supported")
        count = number_of(body.get("alternatives"))
        target, source = languages.of_request("target", body.get("target")), body.get("source")
        detected = languages.detected(" ".join(texts), sources=True)[0] if source == "auto" else None
        source = detected["language"] if detected else languages.of_request("source", source)
        chosen = search | (dict(zip(LANGUAGES, (source, target), strict=True)) if engine.languages else {})
        sentences = sentences_in(source)
        outputs = engine.document(texts, kind, sentences=sentences, **chosen)
        reply: dict[str, Any] = {"translatedText": outputs}
        if count:
            one = [kind == "text" and len(Marked(text).sentences(sentences)) == 1 for text in texts]
            pairs = zip(texts, outputs, one, strict=True)
            reply["alternatives"] = [
                alternatives(text, output, count, chosen) if is_one else [] for text, output, is_one in pairs
            ]
        if detected:
            reply["detectedLanguage"] = [detected] * len(texts)
        return reply if several else {name: value[0] for name, value in reply.items()}

    def texts_of(body: Mapping[str, Any]) -> tuple[list[str], bool]:
        """Returns the texts of a request, and whether it has a list of them."""
        texts = body.get("q") or abort(400, "Invalid request: missing q parameter")
        several = isinstance(texts, list)
        texts = texts if several else [texts]
        if not all(isinstance(text, str) for text in texts):
            abort(400, "Invalid request: q parameter is not a text or a list of texts")
        if any(ord(letter) in SURROGATES for text in texts for letter in {*text}):
            abort(400, "Invalid request: q parameter has half of a surrogate pair")
        limits.check(texts)
        if len(texts) > 1:
            rates.spend(request.remote_addr or "", len(texts) - 1)
        return texts, several

    def alternatives(text: str, output: str, count: int, options: Mapping[str, Any]) -> list[str]:
        beams, most = options.get("beam_size", engine.options.get("beam_size", 1)), engine.max_values
        if "beam_size" in engine.call_options:
            beams = int(min(max(beams, count + 1), most.get("beam_size", MOST_ALTERNATIVES + 1)))
            options = {**options, "beam_size": beams}
        (reply,) = engine.replies([text], int(min(count + 1, beams, most.get("n_best", beams))), **options)
        return [each for each in dict.fromkeys(one.text for one in reply.hypotheses) if each != output.strip()][:count]

    return api


def body_of_request() -> Mapping[str, Any]:
    """Returns the fields of a request, of JSON or of a form."""
    if not request.is_json:
        if request.mimetype not in FORMS and request.get_data()[:1] in (b"{", b"["):
            got = request.mimetype or "none"
            abort(400, f"Content-Type: expected application/json, or that of a form, got {shown(got)}")
        fields = request.values.to_dict()
        # As LibreTranslate does: browsers send two characters for the end of a line, which would count twice.
        return {name: value.replace("\r\n", "\n") for name, value in fields.items()}
    body = parsed(request.get_data())
    if not isinstance(body, dict):
        abort(400, f"Invalid JSON format: expected an object, got {shown(body)}")
    return body


def number_of(value: Any) -> int:
    """Returns a number of alternatives. Forms have strings."""
    try:
        return 0 if value in (None, "") else max(0, min(int(value), MOST_ALTERNATIVES))
    except (ValueError, TypeError, OverflowError):
        abort(400, "Invalid request: alternatives parameter is not a number")


def shown(value: Any) -> str:
    """Formats a value of a request for an error message, in one line of at most 99 characters."""
    return (value if isinstance(value, str) and value.isprintable() else json.dumps(value))[:99]
