"""LibreTranslate's API (https://github.com/LibreTranslate/LibreTranslate), its messages, and codes of languages."""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Blueprint, abort, request

from tf_transformer.decoding.search_options import LANGUAGES
from tf_transformer.extensions import documents
from tf_transformer.extensions.documents.document import FORMATS
from tf_transformer.extensions.documents.marked import PLACEHOLDER, Marked, sentences_in
from tf_transformer.extensions.server.model import Limits, Rates, shown
from tf_transformer.extensions.server.predict import parsed
from tf_transformer.inference.engine import Engine
from tf_transformer.inference.turns import InTurns
from tf_transformer.utils.lazy import import_extra
from tf_transformer.utils.version import __version__

START = 5_000  # characters of a text that its language is detected by
HERE = Path(__file__).parent
# Codes of ISO 639-1, or M2M100's where there is none, NLLB's without the script, and English names.
ROWS = [row.split("\t") for row in (HERE / "languages.tsv").read_text(encoding="utf-8").splitlines()]
NAMES = {code: name for code, _, name in ROWS}
SHORT = {long: code for code, long, _ in ROWS} | {"nb": "no", "nso": "ns", "cmn": "zh"}
# Codes that ISO 639 has withdrawn, Filipino, and those of LibreTranslate and .NET with a region or script in one word.
OTHER = {"iw": "he", "in": "id", "ji": "yi", "jw": "jv", "mo": "ro", "fil": "tl", "pb": "pt-br", "zt": "zh-hant"}
OTHER |= {"zh-cht": "zh-hant", "zh-chs": "zh-hans"}
# Scripts of codes without one: Unicode's likely subtags, where a model has several for a language.
SCRIPTS = {"ace": "latn", "ar": "arab", "bjn": "latn", "ks": "arab", "knc": "latn", "min": "latn", "taq": "latn"}
SCRIPTS |= {"zh": "hans", "zh-tw": "hant", "zh-hk": "hant", "zh-mo": "hant", "ks-in": "deva"}
TAG = re.compile("<[^<>]*>")
PATHS = ("/translate", "/detect", "/languages", "/frontend/settings", "/spec")
OPTIONS = "--source-language CODE --target-language CODE"
UNKNOWN = f"languages unknown, so LibreTranslate's API needs {OPTIONS}"
MOST_ALTERNATIVES = 7  # plus the best translation fill a beam of 8


def short(code: str) -> str:
    """Returns the language of a code: "de" of de, DE, de-AT and deu_Latn."""
    language = parts_of(code)[0]
    return SHORT.get(language, language)


def script(code: str) -> str:
    """Returns the script of a code, such as "latn" of deu_Latn, "hant" of zh-TW, or "" if it has none."""
    language, *others = parts_of(code)
    written = next((part for part in others if len(part) == 4), "")
    regional = [SCRIPTS.get(f"{short(language)}-{part}", "") for part in others]
    return written or next(filter(None, regional), SCRIPTS.get(short(language), ""))


def parts_of(code: str) -> list[str]:
    """Splits a code into language, script and region, in lowercase."""
    first, *others = code.lower().replace("_", "-").split("-")
    joined = OTHER.get("-".join([first, *others[:1]]))
    return [*joined.split("-"), *others[1:]] if joined else [*OTHER.get(first, first).split("-"), *others]


def known_as(code: str, languages: Sequence[str]) -> str | None:
    """Returns the one of a model's languages that a request's code means, or `None`."""
    if code in languages:
        return code
    same = [each for each in languages if short(each) == short(code)]
    if len(same) > 1:
        same = [each for each in same if script(each) == script(code)]
    return same[0] if len(same) == 1 else None


def name_of(code: str, languages: Sequence[str]) -> str:
    """Returns a language's English name, with the script if a model has several."""
    name = NAMES.get(short(code), code)
    several = len([each for each in languages if short(each) == short(code)]) > 1
    return f"{name} ({code})" if several and name != code else name


class Languages:
    """The languages of a server's translator."""

    def __init__(self, engine: Engine, options: Mapping[str, Any]) -> None:
        self.defaults = [str(options.get(name) or engine.metadata.get(name) or "") for name in LANGUAGES]
        self.sources, self.targets = ([*engine.languages] or [*filter(None, [code])] for code in self.defaults)
        # A card lists the two languages of a pair in any order, so a request names the source and the target.
        listed = engine.metadata.get("languages")
        pair = [code.strip() for code in listed.split(",")] if isinstance(listed, str) else []
        if len(pair) == 2 and not any(self.defaults) and not engine.languages:
            self.sources, self.targets = pair, pair

    def __str__(self) -> str:
        if self.sources and self.sources == self.targets and not self.defaults[0] and len(self.sources) == 2:
            return f"between {' and '.join(self.sources)}"
        if len(self.sources) > 1:
            return f"{len(self.sources)} languages"
        return f"{self.defaults[0]} to {self.defaults[1]}" if self else UNKNOWN

    def __bool__(self) -> bool:
        return bool(self.sources and self.targets)

    def listed(self) -> list[dict[str, Any]]:
        """Returns all languages. Those that are only targets have none, since clients look both of a pair up here."""
        every = list(dict.fromkeys([*self.sources, *self.targets]))
        targets = {code: self.targets for code in self.sources}
        return [{"code": code, "name": name_of(code, every), "targets": targets.get(code, [])} for code in every]

    @property
    def _server_language(self) -> str:
        return self.defaults[0] if self.defaults[0] in self.sources else self.sources[0]

    @functools.cached_property
    def _detector(self) -> tuple[Callable[[str], list[tuple[str, float]]], dict[str, str]]:
        """Ranks the languages of a text, and the model's codes by those that it returns."""
        langid = import_extra("py3langid.langid", "serve", "detection of languages")
        identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
        labels = {short(label): label for label in identifier.labels}
        codes = {labels[short(each)]: each for each in [*self.targets, *self.sources][::-1] if short(each) in labels}
        identifier.set_languages([*codes] or None)
        return identifier.rank, codes

    def detected(self, text: str, sources: bool) -> list[tuple[str, float]]:
        """Returns up to three languages of a text and percentages, best first: of the `sources`, or of all.

        A text without a word has that of the server.
        """
        rank, codes = self._detector
        text = PLACEHOLDER.sub(" ", text[:START])
        ranked = rank(text) if any(map(str.isalpha, text)) else []
        if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:  # The detector knows nothing of these letters.
            ranked = []
        known = [(codes[label], round(100 * chance, 1)) for label, chance in ranked if label in codes]
        known = [(code, chance) for code, chance in known if not sources or code in self.sources]
        return [pair for pair in known[:3] if pair[1]] or known[:1] or [(self._server_language, 0.0)]


def routes(engine: InTurns, options: Mapping[str, Any], limits: Limits, rates: Rates) -> Blueprint:
    """Returns the API's addresses. The options are those of the engine's calls."""
    api, languages = Blueprint("libretranslate", __name__), Languages(engine, options)
    search = {name: value for name, value in options.items() if name not in LANGUAGES}

    @api.before_request
    def check_languages() -> None:
        if not languages:
            got = f"got one that does not store them. Start the server with {OPTIONS}"
            abort(404, f"{request.path}: expected a model with languages, {got}")

    api.get("/languages")(languages.listed)

    @api.get("/frontend/settings")
    def settings() -> Any:
        source, target = languages.sources[0], languages.defaults[1] or languages.targets[-1]
        language = {"source": {"code": source, "name": name_of(source, languages.sources)}}
        language["target"] = {"code": target, "name": name_of(target, languages.targets)}
        absent = dict.fromkeys(("apiKeys", "keyRequired", "suggestions", "filesTranslation"), False)
        limit = {"charLimit": limits.chars, "frontendTimeout": 500, "supportedFilesFormat": list[str]()}
        return {**limit, **absent, "language": language}

    @api.get("/spec")
    def spec() -> Any:
        described = json.loads((HERE / "spec.json").read_text(encoding="utf-8"))
        return {**described, "info": {**described["info"], "version": __version__}}

    @api.post("/detect")
    def detect() -> Any:
        texts, _ = texts_of(body_of_request())
        return [detection(*best) for best in languages.detected(" ".join(texts), sources=False)]

    @api.post("/translate")
    def translate() -> Any:
        body = body_of_request()
        texts, several = texts_of(body)
        kind = body.get("format") or "text"
        if kind not in FORMATS:
            abort(400, f"{shown(kind)} format is not supported")
        count = number_of(body.get("alternatives"))
        target, source = language_of(body, "target", languages.targets), body.get("source")
        words = [text if kind in ("text", "srt") else TAG.sub(" ", text) for text in texts]
        detected = languages.detected(" ".join(words), sources=True)[0] if source == "auto" else None
        source = detected[0] if detected else language_of(body, "source", languages.sources)
        chosen = search | (dict(zip(LANGUAGES, (source, target), strict=True)) if engine.languages else {})
        outputs = documents.translate(engine, texts, kind, sentences=sentences_in(source), **chosen)
        reply: dict[str, Any] = {"translatedText": outputs}
        if count:
            one = [kind == "text" and len(Marked(text).sentences(sentences_in(source))) == 1 for text in texts]
            reply["alternatives"] = [
                alternatives(text, output, count, chosen) if is_one else []
                for text, output, is_one in zip(texts, outputs, one, strict=True)
            ]
        if detected:
            reply["detectedLanguage"] = [detection(*detected)] * len(texts)
        return reply if several else {name: value[0] for name, value in reply.items()}

    def language_of(body: Mapping[str, Any], side: str, known: list[str]) -> Any:
        """Returns the model's code of a request's source or target."""
        code = body.get(side) or languages.defaults[side == "target"]
        if not code:
            abort(400, f"Invalid request: missing {side} parameter")
        meant = known_as(code, known) if isinstance(code, str) else None
        return meant or abort(400, f"{shown(code)} is not supported")

    def texts_of(body: Mapping[str, Any]) -> tuple[list[str], bool]:
        """Returns the texts of a request, and whether it has a list of them."""
        texts = body.get("q") or abort(400, "Invalid request: missing q parameter")
        several = isinstance(texts, list)
        texts = texts if several else [texts]
        if not all(isinstance(text, str) for text in texts):
            abort(400, "Invalid request: q parameter is not a text or a list of texts")
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


def detection(language: str, confidence: float) -> dict[str, Any]:
    return {"confidence": confidence, "language": language}


def body_of_request() -> Mapping[str, Any]:
    """Returns the fields of a request, of JSON or of a form."""
    if not request.is_json:
        if request.get_data(cache=True).lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
            abort(400, f"expected a form, got JSON as {shown(request.mimetype)}. Send Content-Type: application/json")
        # As LibreTranslate does: browsers send two characters for the end of a line, which would count twice.
        return {name: value.replace("\r\n", "\n") for name, value in request.values.items()}
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
