"""Language codes and English names, and the language of a text."""

import re
import threading
from collections.abc import Sequence
from typing import Any

from tf_transformer.utils.extras import import_extra

START = 5_000  # characters of a text that its language is detected by
# Codes of ISO 639-1, or M2M100's where there is none, NLLB's codes without the script, and the name.
TABLE = """
af afr Afrikaans; am amh Amharic; ar arb Arabic; as asm Assamese; ast ast Asturian; ay ayr Aymara; az azj Azerbaijani;
ba bak Bashkir; be bel Belarusian; bg bul Bulgarian; bm bam Bambara; bn ben Bengali; bo bod Tibetan; br bre Breton;
bs bos Bosnian; ca cat Catalan; ceb ceb Cebuano; cs ces Czech; cy cym Welsh; da dan Danish; de deu German;
dz dzo Dzongkha; ee ewe Ewe; el ell Greek; en eng English; eo epo Esperanto; es spa Spanish; et est Estonian;
eu eus Basque; fa pes Persian; ff fuv Fulah; fi fin Finnish; fj fij Fijian; fo fao Faroese; fr fra French;
fy fry Western Frisian; ga gle Irish; gd gla Scottish Gaelic; gl glg Galician; gn grn Guarani; gu guj Gujarati;
ha hau Hausa; he heb Hebrew; hi hin Hindi; hr hrv Croatian; ht hat Haitian Creole; hu hun Hungarian; hy hye Armenian;
id ind Indonesian; ig ibo Igbo; ilo ilo Iloko; is isl Icelandic; it ita Italian; ja jpn Japanese; jv jav Javanese;
ka kat Georgian; kg kon Kongo; ki kik Kikuyu; kk kaz Kazakh; km khm Khmer; kn kan Kannada; ko kor Korean;
ks kas Kashmiri; ku kmr Kurdish; ky kir Kyrgyz; lb ltz Luxembourgish; lg lug Ganda; li lim Limburgish; ln lin Lingala;
lo lao Lao; lt lit Lithuanian; lv lvs Latvian; mg plt Malagasy; mi mri Maori; mk mkd Macedonian; ml mal Malayalam;
mn khk Mongolian; mr mar Marathi; ms zsm Malay; mt mlt Maltese; my mya Burmese; ne npi Nepali; nl nld Dutch;
nn nno Norwegian Nynorsk; no nob Norwegian; ns nso Northern Sotho; ny nya Chichewa; oc oci Occitan; om gaz Oromo;
or ory Odia; pa pan Punjabi; pl pol Polish; ps pbt Pashto; pt por Portuguese; qu quy Quechua; rn run Rundi;
ro ron Romanian; ru rus Russian; rw kin Kinyarwanda; sa san Sanskrit; sc srd Sardinian; sd snd Sindhi; sg sag Sango;
si sin Sinhala; sk slk Slovak; sl slv Slovenian; sm smo Samoan; sn sna Shona; so som Somali; sq als Albanian;
sr srp Serbian; ss ssw Swati; st sot Southern Sotho; su sun Sundanese; sv swe Swedish; sw swh Swahili; ta tam Tamil;
te tel Telugu; tg tgk Tajik; th tha Thai; ti tir Tigrinya; tk tuk Turkmen; tl tgl Tagalog; tn tsn Tswana;
tr tur Turkish; ts tso Tsonga; tt tat Tatar; ug uig Uyghur; uk ukr Ukrainian; ur urd Urdu; uz uzn Uzbek;
vi vie Vietnamese; wo wol Wolof; xh xho Xhosa; yi ydd Yiddish; yo yor Yoruba; zh zho Chinese; zu zul Zulu
"""
ROWS = [row.split(maxsplit=2) for row in TABLE.split(";")]
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
