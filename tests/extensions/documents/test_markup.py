"""Documents in HTML and XML before and after translation, compared by other parsers."""

import collections
import itertools
import re
import time
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import hypothesis
import hypothesis.strategies as st
import lxml.html
import pytest
from justhtml import JustHTML
from test_documents import MANY, WORD, Words

from tf_transformer.config import BadInput
from tf_transformer.extensions.documents import translate
from tf_transformer.extensions.documents.document import decoded
from tf_transformer.extensions.documents.markup import parts_of

TEXT = WORD | st.sampled_from([" ", ". ", "\n", "&amp;", "&lt;", "a b", "<!-- c -->", "<img src=a.png>"])
NAMES = ["b", "i", "a href='x?a=1&amp;b=2'", "span translate='no'", "code", "sup", "em translate='yes'", "u class='x'"]
NAMES += ["p", "div", "div class='x notranslate'", "li", "x-y", "section translate='yes'", "pre", "svg", "ruby", "rt"]
LOOSE = ["<p>", "<li translate=no>", "</b>", "</p>", "<b>", "<i>", "<tr>", "<td translate=no>", "<table>", "</table>"]
LOOSE += ["<!doctype html>", "<html>", "<body translate=no>", "</body>", "</", "<", "<!", "<?php x ?>", "<![CDATA[x]]>"]
LOOSE += ["</ x>", "<script>a<b</script>", "<style>", "<textarea>don't</textarea>", "<title>", "</title>", "<template>"]
LOOSE += ["<svg><style/>", "<math><mi>", "<ruby>a<rt>b", "<a>", "</a>", "<nobr>", "<select>", "<option>", "<button>"]
LOOSE += ['<a b="', "<p id=x/>", "<!-", "<form>", "<noscript>", "<svg></p>", "<script><!--<script></script>", "<xmp>"]


def around(children):
    parts = st.tuples(st.sampled_from(NAMES), st.lists(children, max_size=4))
    return parts.map(lambda one: f"<{one[0]}>{''.join(one[1])}</{one[0].split()[0]}>")


SOUND = st.lists(st.recursive(TEXT, around, max_leaves=12), max_size=5).map("".join)
BROKEN = st.lists(SOUND | st.sampled_from(LOOSE), max_size=8).map("".join)


def nodes(document):
    """Yields the elements and texts of a page in the standard's tree, with whether their text is excluded."""
    queue = [(JustHTML(document, sanitize=False, scripting_enabled=False).root, False, False)]
    while queue:
        node, no, never = queue.pop()
        attributes, names = getattr(node, "attrs", None) or {}, "script style textarea template xmp rt rp"
        own = attributes.get("translate")
        no = own == "no" or (
            own != "yes" and (no or node.name == "code" or "notranslate" in attributes.get("class", ""))
        )
        never |= node.name in names.split() or getattr(node, "namespace", None) in ("svg", "math")
        yield node, no or never
        children = [*(node.children or ()), getattr(node, "template_content", None)]
        queue += [(child, no, never) for child in reversed(children) if child is not None]


def shape(document):
    """Returns the elements and comments of a page, in the tree's order."""
    elements = [(node.name, str(getattr(node, "attrs", "")), str(node.data)) for node, _ in nodes(document)]
    return [one for one in elements if one[0] != "#text" and one[0] != "!doctype"]


def shape_by_lxml(document):
    elements = lxml.html.document_fromstring(f"<div>{document}</div>").iter()
    return [(str(one.tag), dict(one.attrib), "" if isinstance(one.tag, str) else one.text) for one in elements]


def shouted(document, is_xml=False):
    """Returns the document with its translated text in capitals."""

    def written(part):
        write, part.write = part.write, lambda text: write(text.upper())
        return part.written()

    return "".join(part if isinstance(part, str) else written(part) for part in parts_of(document, is_xml))


@MANY
@hypothesis.given(BROKEN)
def test_only_texts_that_the_tree_does_not_exclude_change(document):
    after = shouted(document)
    assert shape(after) == shape(document)
    pairs = [pair for pair in zip(nodes(document), nodes(after), strict=True) if pair[0][0].name == "#text"]
    for (node, is_excluded), (new, _) in pairs:
        assert new.data in ([node.data] if is_excluded else [node.data, node.data.upper()])


@MANY
@hypothesis.given(SOUND)
def test_all_other_texts_change(document):
    assert shape_by_lxml(shouted(document)) == shape_by_lxml(document)
    for node, is_excluded in nodes(shouted(document)):
        assert node.name != "#text" or is_excluded or node.data == node.data.upper()


@MANY
@hypothesis.given(BROKEN, st.integers(0, 2**9))
def test_words_in_another_order_leave_the_same_elements(document, seed):
    after = translate(Words(str.upper, seed), document, "html")
    assert collections.Counter(shape(after)) == collections.Counter(shape(document))


def xml(children):
    names = st.sampled_from(
        ["g id='1'", "x:y", "ph translate='no'", "mrk its:translate='yes'", "style", "s xml:space='preserve'"]
    )
    return st.tuples(names, st.lists(children, max_size=4)).map(
        lambda one: f"<{one[0]}>{''.join(one[1])}</{one[0].split()[0]}>"
    )


XML = st.text("abé ß日\n\t&<>]\"'", max_size=5).map(escape) | st.sampled_from(
    ["<n a='>'/>", "<!-- <b> -->", "<?p <q> ?>", "<![CDATA[a & <b> ]]>", "&#233;", "&e;", "&amp;"]
)
HEADS = ["", '<?xml version="1.0" encoding="iso-8859-1"?>\n', '\ufeff<?xml version="1.0"?>', "<!-- <r> -->\n"]
TYPES = ["", '<!DOCTYPE r [<!ENTITY e "<b>&amp;</b>"><!-- > ]> --><?p ]>?><!ENTITY f SYSTEM "f">\n]>\n']
OPEN = '<r xmlns:x="urn:x" xmlns:its="http://www.w3.org/2005/11/its">'


def events(document):
    parser = ElementTree.XMLPullParser(["start", "end", "comment", "pi"])
    parser.feed(document.replace("iso-8859-1", "utf-8").replace("&e;", "").encode())
    return [
        (kind, one.tag, dict(one.attrib)) if kind in ("start", "end") else (kind, one.text)
        for kind, one in parser.read_events()
    ]


@MANY
@hypothesis.given(
    st.sampled_from(HEADS), st.sampled_from(TYPES), st.lists(st.recursive(XML, xml, max_leaves=12), max_size=6)
)
def test_xml_is_the_same_but_for_its_text(head, declared, content):
    inside = "".join(content)
    document = f"{head}{declared}{OPEN}{inside}</r>\n<!-- end -->"
    after = shouted(document, True)
    assert after.startswith(head + declared + OPEN) and after.endswith("</r>\n<!-- end -->")
    assert events(after) == events(document)
    parts = r"<!--.*?-->|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<style.*?</style>|&e;|<[^!?][^<]*?>"
    assert re.findall(parts, after, re.DOTALL) == re.findall(parts, document, re.DOTALL)
    part = shouted(inside, True)  # a part of a document gives the same
    assert after == f"{head}{declared}{OPEN}{part}</r>\n<!-- end -->" or "its:" in inside or "x:" in inside


def asked(document, format="html"):
    engine = Words(str.upper)
    return translate(engine, document, format), engine.asked


def test_elements_end_where_a_browser_ends_them():
    """From the standard: optional tags, void and foreign elements, raw text, tables, bogus comments."""
    same = [
        ("<ul><li translate=no>Acme Door<li>Two</ul>", ["Two"]),
        ("<dl><dt class=notranslate>Acme<dd>Two<dd translate=no>x</dl>", ["Two"]),
        ("<select><option translate=no>Acme<option>Two</select>", ["Two"]),
        ("<html translate=no><title>x</title><p>x<p translate=yes>Two", ["Two"]),
        ("<title translate=no>Acme</title><title>a < b</title>", ["a < b"]),
        ("<p translate=no>x <b translate>Two</b> x</p>", ["Two"]),
        ("<code>x <i translate=yes>Two</i></code> <kbd translate=yes>Three</kbd>", ["Two", "Three"]),
        ("<svg><title>x</title><p>Two", ["Two"]),  # <p> ends <svg>
        ("<svg><style/><title/></svg>Two<style>x</style><svg/>Three", ["Two", "Three"]),
        ("<title/>x</title>Two", ["x", "Two"]),
        ("<title>Two</title><body>Three", ["Two", "Three"]),  # no tag of <head>
        ("<table>Two<tr><td>Three</table>", ["Two", "Three"]),
        ("<noscript><p>Two</noscript><iframe>x</iframe><template>x</template><xmp>x <p>y</xmp>", ["Two"]),
        ("<script>'<p>x'; // <!-- <script> </script> <p>x</script><p>Two", ["Two"]),
        ("Two <a href='>x'", ["Two"]),  # the page ends in a tag
        ("<plaintext>x</plaintext>x", []),
    ]
    for document, expected in same:
        written, texts = asked(document)
        assert sorted(texts) == sorted(expected), document
        for text in expected:
            document = document.replace(text, text.upper().replace("<", "&lt;"))
        assert written == document
    texts = asked("Go <br/>on <!-- c --> now<wbr>here <![CDATA[x]]> </ x> then <?php x ?> stop")[1]
    assert [" ".join(text.split()) for text in sorted(texts)] == ["Go", "on nowhere then stop"]


def test_readings_over_ruby_are_no_words_of_the_sentence():
    for document in (
        "<ruby>\u6f22<rp>(</rp><rt>kan</rt><rp>)</rp>\u5b57<rt>ji</rt></ruby>\u3067\u3059",
        "<p>\u6f22\u5b57<ruby>\u306e<rp>(<rt>no<rp>)</ruby>\u672c",
    ):
        texts = asked(document)[1]
        assert len(texts) == 1 and re.fullmatch(r"[^a-z(]{4}", texts[0]) and shouted(document) == document


def test_elements_side_by_side_are_apart():
    def sentences(document):
        runs = [part for part in parts_of(document) if not isinstance(part, str)]
        return [span for run in runs for span in run.sentences(lambda line: [line])]

    menu = '<div><a href="/a">Home</a><a href="/b">About us</a><b><i>3</i><i>new</i></b></div>'
    assert asked(menu)[0] == re.sub(r">[^<]+", lambda match: match[0].upper(), menu)
    assert sorted(asked(menu)[1]) == ["3", "About us", "Home", "new"]
    for apart in re.split(
        r"\|", "<a>a.</a><!-- --><a>b</a>|<p>a<img src=x>b|<b>a</b><code>x</code> b|<i><b>a</b></i><u>b</u>"
    ):
        assert len(sentences(apart)) == 2, apart
    for joined in re.split(
        r"\|", "<b>a</b><i>, b</i>|<b>a</b> <i>b</i>|a<b>b</b>c|<b>a</b><sup>2</sup>|<b>\u4e2d</b><i>\u6587</i>"
    ):
        assert len(sentences(joined)) == 1, joined


@MANY
@hypothesis.given(st.lists(st.integers(0, 30)), st.sampled_from(["a href='/x'", "b", "span"]), st.booleans())
def test_an_address_divided_by_elements_is_one_placeholder(cuts, name, divides):
    address, ends = "https://example.com/doors?a=1&b=2", sorted({0, *cuts, 33})
    names = ["span class='y'", "wbr"] if divides else ["b"]
    inside = ""
    for index, (start, end) in enumerate(itertools.pairwise(ends)):
        text = escape(address[start:end])
        inside += (
            f"{text}<wbr>" if names[index % len(names)] == "wbr" else f"<{names[0]}>{text}</{names[0].split()[0]}>"
        )
    link = f"<{name}>{inside}</{name.split()[0]}>"
    written, texts = asked(f"<p>Go to {link} now <a>https://x.org/y</a> on</p>")
    assert written == f"<p>GO TO {link} NOW <a>https://x.org/y</a> ON</p>"
    assert texts == [f"Go to {address} now https://x.org/y on"]


def test_an_address_that_an_element_divides_from_other_text_keeps_its_tags():
    (run,) = (part for part in parts_of("<p>Go <b>to https://x.org/</b>y <wbr>on") if not isinstance(part, str))
    assert [mark.raw for mark in run.marks] == ["<b>", "</b>", "<wbr>"]


def test_xml_may_have_names_of_its_own_and_no_bombs():
    engine = Words(str.upper)
    declared = '<!DOCTYPE r [<!NOTATION n PUBLIC "p"><!ENTITY a "<b>x</b>"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
    document = f"{declared}<r><p>go &a; on</p><p>&f;</p><p>go &other; on</p></r>"
    assert translate(engine, document, "xml") == document.replace("go", "GO").replace("on<", "ON<")
    bomb = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 12))
    document, began = f"<!DOCTYPE r [{bomb}]><r>go &a11;</r>", time.monotonic()
    assert translate(engine, document, "xml") == document.replace("go", "GO")
    with pytest.raises(BadInput, match="limit on input amplification"):
        translate(engine, document.replace("<r>", "<r a='&a11;'>"), "xml")
    assert time.monotonic() - began < 30
    for document, where in (
        ("<a>\n <b>\u00e9</a>", "mismatched tag in line 2, column 8"),
        ("<a>go <b>", "no element found in line 1, column 10"),
        ("go </b>", "mismatched tag in line 1, column 6"),
        ("\ud800<a/>", "invalid token\\) in line 1, column 1"),
    ):
        with pytest.raises(BadInput, match=f"^document: expected well-formed XML, got .*{where}$"):
            translate(engine, document, "xml")


def test_newlines_end_sentences_where_white_space_is_kept():
    default = "<r xml:space='preserve'><a xml:space='default'>a\n<b>b</b></a></r>"
    for document, format, expected in (
        ("<pre>a\n<b>b</b></pre>", "html", ["a", "b"]),
        ("<a xml:space='preserve'>a\n<b>b</b></a>", "xml", ["a", "b"]),
        ("<p>a\n<b>b</b>", "html", ["a b"]),
        (default, "xml", ["a b"]),
    ):
        assert sorted(asked(document, format)[1]) == expected


PAGE = '<meta {}><p title="caf\u00e9">A caf\u00e9 \u20ac</p><script>"\u00e9"</script>'


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ('charset="iso-8859-1"', "cp1252"),
        ("http-equiv=Content-Type content='text/html; charset=windows-1252'", "cp1252"),
        ("charset=ISO-8859-15", "iso8859-15"),
        ("charset=gb2312", "gb18030"),
        ("charset=utf-16", "utf-8"),  # which such bytes cannot be in
        ("name=x", "utf-8"),
        ("name=x", "cp1252"),
        ("charset=koi8-r", "utf-8-sig"),  # the byte order mark wins
        ("name=x", "utf-16"),
    ],
)
def test_pages_are_read_and_written_in_their_encoding(declared, encoding, tmp_path, monkeypatch):
    from trainers import translate as program

    page = PAGE.format(declared)
    data = page.encode(encoding)
    assert translate(Words(str.upper), data, "html").removeprefix("\ufeff") == page.replace(
        "A caf\u00e9", "A CAF\u00c9"
    )
    (tmp_path / "page.html").write_bytes(data)
    monkeypatch.setattr(program, "engine", lambda *args, **options: Words(lambda word: word.replace("A", "\u4e2d")))
    program.main(["x", str(tmp_path / "page.html"), "--document", "html", "--output", str(tmp_path / "out.html")])
    written = page.replace(">A", ">\u4e2d" if "utf" in encoding or encoding == "gb18030" else ">&#20013;")
    assert (tmp_path / "out.html").read_bytes() == written.encode(encoding)


def test_xml_has_the_encoding_that_it_declares():
    text = '<?xml version="1.0" encoding="{}"?><a>\u00e9</a>'
    for name, encoding in (
        ("ISO-8859-1", "iso8859-1"),
        ("windows-1251", "cp1251"),
        ("Shift_JIS", "cp932"),  # a superset that real files are in
    ):
        character = {"windows-1251": "\u0434", "Shift_JIS": "\u2460"}.get(name, "\u00e9")
        document = text.format(name).replace("\u00e9", character)
        assert decoded(document.encode(encoding), "xml") == (document, encoding)
    for data, format, message in (
        (b"<meta charset=x-own>", "html", "expected an encoding that Python supports, got 'x-own'"),
        (b"<meta charset=utf-7>", "html", "expected an encoding"),
        (b"<meta charset=utf-8>\xe9", "html", "expected text in utf-8, got byte 0xe9 at 20"),
        (b"<p>\xe9 \x81", "html", "expected text in cp1252, got byte 0x81 at 5"),
        (b"<a>\xe9</a>", "xml", "expected text in utf-8, got byte 0xe9 at 3"),
        (text.format("rot13").encode(), "xml", "expected an encoding"),
    ):
        with pytest.raises(BadInput, match=f"^document: {message}"):
            translate(Words(), data, format)


def test_a_page_takes_seconds():
    """A quadratic time would be a minute: each kind is 15 KB long."""
    kinds = """<a |<b>|<div>|<p><b>x|<b>x<i>y</b>z</i>|<table>|<svg>|<a>x</a>|x<b>y</b> |<ruby>a<rt>b|<title>|<!--|<a b=
&x;|https://a<b>b</b>|<span translate=no>|<li>x|<nobr>|</body><!-->"""
    for kind in re.split(r"[|\n]", kinds):
        began = time.process_time()
        parts_of(kind * (15_000 // len(kind)))
        assert time.process_time() - began < 2.5, kind
    deep = "<x>" * 10_000 + "a" + "</x>" * 10_000
    for is_xml in (False, True):
        assert [part.text for part in parts_of(deep, is_xml) if not isinstance(part, str)] == ["a"]


NATIVE = {
    "XLIFF": '<source>Click <bpt id="1">&lt;b&gt;</bpt>the red door<ept id="1">&lt;/b&gt;</ept> now.</source>',
    "TMX": '<seg>See <bpt i="1">{\\b </bpt>all<ept i="1">}</ept> <ph x="2">&lt;br/&gt;</ph> doors<ut>{\\f1}</ut>.</seg>',  # noqa: E501
    "with a prefix": '<x:seg xmlns:x="u">A <x:ph>%1</x:ph> door <x:bpt i="1">[b]</x:bpt>is<x:ept i="1">[/b]</x:ept>.</x:seg>',  # noqa: E501
    "in others": '<target><g id="1">See <it pos="open">&lt;i&gt;</it>a dog</g> <it pos="close">&lt;/i&gt;</it></target>',  # noqa: E501
    "overlapping": """<seg><bpt i="1">[b]</bpt>a <bpt i="2">[i]</bpt>red<ept i="1">[/b]</ept> dog<ept i="2">[/i]</ept></seg>""",  # noqa: E501
    "of a unit": '<xliff><originalData><data>&lt;b alt="See it"&gt;</data></originalData><source>Go on</source></xliff>',  # noqa: E501
    "of a file": "<xliff><skl><internal-file>See it</internal-file></skl><source>Go on</source></xliff>",
}


@pytest.mark.parametrize("name", NATIVE)
def test_native_code_of_xliff_and_tmx_is_no_text(name):
    """It comes out unchanged, in its place beside the words, and the model is not asked for it."""
    engine = Words(str.upper, most=99)
    tags = r"<(x:)?(bpt|ept|it|ph|ut|data|internal-file)\b[^>]*>[^<]*</(?:x:)?\2>|<[^<>]*>"
    expected, last = "", 0
    for match in re.finditer(tags, NATIVE[name]):
        expected += NATIVE[name][last : match.start()].upper() + match[0]
        last = match.end()
    assert translate(engine, NATIVE[name], "xml") == expected + NATIVE[name][last:].upper()
    assert not re.search(r"[\[\]{}<>%]", " ".join(engine.asked)), engine.asked


def test_text_within_native_code_is_translated():
    document = '<source>Go <ph id="1">&lt;a title="<sub>Two doors</sub>"&gt;</ph>on.</source>'
    expected = document.replace("Go", "GO").replace("on.", "ON.").replace("Two doors", "TWO DOORS")
    assert translate(Words(str.upper), document, "xml") == expected


@pytest.mark.parametrize("document", ["<p>The <ph>big red</ph> dog</p>", "<p>The <it>big</it> dog</p>"])
def test_elements_of_other_vocabularies_are_text(document):
    words = re.sub("<[^<>]*>", "", document)
    engine = Words(str.upper)
    assert re.sub("<[^<>]*>", "", translate(engine, document, "xml")) == words.upper() and engine.asked == [words]


ESCAPED = [
    r"Don\'t open it",
    r"Say \"Go on\" now",
    r"L\u2019eau\u2014l\u2019air",
    r"It\'s \"red\" \@ home\?",
    r"Two\nlines\n\nand \ttabs\r\n",
    r"\n\tBegin",
    r"Path C:\new\table and \\server\name\x",
    r"Twice escaped\\nin JSON",
    r"Up\N- Down",
    r"Do not\n%1$s\n{name}\nchange",
]


@pytest.mark.parametrize("text", ESCAPED)
@pytest.mark.parametrize("format", ["xml", "text"])
def test_escapes_of_apps_stay_and_no_word_has_them(text, format):
    engine = Words(str.upper, most=99)
    document = f"<string>{text}</string>" if format == "xml" else text
    kept = re.compile(r"C:\S+|\\\\server\S+|\\+[nrtN'\"]|\\u\w{4}|%1\$s|\{name\}|</?string>")
    expected, last = "", 0
    for match in kept.finditer(document):
        expected += document[last : match.start()].upper() + match[0]
        last = match.end()
    assert translate(engine, document, format) == expected + document[last:].upper()
    assert not re.search(r"\\+(?:[nrtN](?!ame|ew|able)|['\"u])", " ".join(engine.asked)), engine.asked


def test_only_the_characters_that_a_text_escapes_are_escaped_in_its_translation():
    engine = Words({"d\u00e9j\u00e0": "\u00e0", "vu": "\u00c0"}.get)
    assert translate(engine, r"d\u00e9j\u00e0 vu") == "\\u00e0 \u00c0"
    assert engine.asked == ["d\u00e9j\u00e0 vu"]
    spaced = Words(str)
    translate(spaced, r"Go\u00A0on\u202f!")
    assert spaced.asked == ["Go\xa0on\u202f!"]


def test_written_characters_that_cannot_be_read_are_copied():
    """A character in both forms has no known form in a translation. Half of a pair is not a character."""
    engine = Words(str.upper, most=99)
    expected = "SMILE \\ud83d\\ude00 AND \\u2026 NOT \u2026"
    assert translate(engine, "Smile \\ud83d\\ude00 and \\u2026 not \u2026") == expected


def test_quotes_of_a_translation_are_escaped_as_those_of_the_text():
    engine = Words({"Don't": "N'ouvre", "open": "pas", "it": "\u2019"}.get)
    assert translate(
        engine, r"<string>Don\'t open it</string>", "xml"
    ) == r"<string>N\'ouvre pas \u2019</string>".replace("\\u2019", "\u2019")
    mixed = r"<string>Don\'t</string><string>Don't</string>"  # Neither is a rule.
    assert translate(Words(str), mixed, "xml") == mixed
