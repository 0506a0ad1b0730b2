"""Language codes and English names, and the language of a text."""

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tf_transformer.utils.extras import import_extra

START = 5_000  # characters of a text that its language is detected by
TABLE = (Path(__file__).parent / "languages.tsv").read_text(encoding="utf-8").splitlines()
# Codes of ISO 639-1, or M2M100's where there is none, NLLB's without the script, and English names.
ROWS = [row.split("\t") for row in TABLE]
NAMES = {code: name for code, _, name in ROWS}
SHORT = {long: code for code, long, _ in ROWS} | {"nb": "no", "nso": "ns"}


def short(code: str) -> str:
    """Returns the language of a code: "de" of de, DE, de-AT and deu_Latn."""
    language = re.split("[-_]", code.lower())[0]
    return SHORT.get(language, language)


def script(code: str) -> str:
    """Returns the script of a code, such as "latn" of deu_Latn, or ""."""
    return next((part for part in re.split("[-_]", code.lower())[1:] if len(part) == 4), "")


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


class Detector:
    """Detects which of a model's languages a text is in, by py3langid, which is loaded at the first text."""

    def __init__(self, languages: Sequence[str]) -> None:
        self._languages, self._lock = languages, threading.Lock()
        self._identifier: Any = None
        self._codes: dict[str, str] = {}  # by py3langid's codes

    def ranked(self, text: str) -> list[tuple[str, float]]:
        """Returns codes and probabilities in percent, best first. It is empty if no language can be detected."""
        with self._lock:
            if self._identifier is None:
                self._load()
        if not self._codes:
            return []
        start = re.sub("[\ud800-\udfff]", " ", text[:START])
        return [(self._codes[label], round(100 * chance, 1)) for label, chance in self._identifier.rank(start)]

    def _load(self) -> None:
        langid = import_extra("py3langid.langid", "serve", "detection of languages")
        identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
        known = {short(label): label for label in identifier.labels}
        for code in self._languages:
            if label := known.get(short(code)):
                self._codes.setdefault(label, code)
        identifier.set_languages(list(self._codes) or None)
        self._identifier = identifier
