"""Placeholders: each syntax matches its examples and no text, and a lost one returns with the signs that it touched."""

import functools
import re
import string

import pytest
from test_documents import Words

from tf_transformer.extensions.documents import translate
from tf_transformer.extensions.documents.marked import PLACEHOLDER, PLACEHOLDERS

words = functools.partial(re.split, r"\s+")
# By syntax: examples that match as a whole, within a sentence.
WHOLE = {
    "address": words("""https://example.org/a?b=1&c=2#d http://x.org ftp://ftp.x.org/a.zip www.example.org/a https://x.org/{id}/edit
        https://en.wikipedia.org/wiki/Foo_(bar) https://user@x.org:8080/~a/b.html https://de.wikipedia.org/wiki/Köln
        https://x.org/a,b;c https://[::1]:80/a https://ru.wikipedia.org/wiki/Россия https://x.org/%E6%97%A5"""),
    "e-mail": words("me+you@mail.example.org a.b@x.de josé@example.org a_b-c@sub.x.co.uk"),
    "template": [
        *("{{ name }}", "{{name}}", "{{ user.name | upper }}", "{{ 'a b' | translate }}", "{{{raw}}}", "{% if x %}"),
        *("{%- endif -%}", "{# note #}", "<%= x %>", "<% end %>", "{{ $t('a.b', { n: 1 }) }}"),
    ],
    "ICU": [
        *("{n, number}", "{d, date, long}", "{count, plural, one {# file} other {# files}}"),
        *("{g, select, male {He} other {They}}", "{n, plural, =0 {none} other {{n, number} left}}"),
        "{ n, plural, one {a {b, select, x {y} other {z}}} other {c}}",
    ],
    "braces": [
        *words("{name} {0} {} {x:.2f} {x!r} {x:{w}} ${x} #{x} %{count} @{x} {user.name} {user['a']} {$x} {用户}"),
        *("{ $size }", "{ -brand-name }", "{ name }", "{ NUMBER($n, digits: 2) }", "#{ x }", "${ x }"),
    ],
    "brackets": ["[[x]]", "[[user.name]]"],
    "path": [r"C:\new\table.txt", r"d:\temp", r"\\server\name\x", r"\\a.b\c$"],
    "escape": [r"\u00A0", r"\u2026", r"\ud83d"],
    "dollar": ["$COUNT$", "$user_name", "$userName"],
    "percent name": ["%name%", "%user.name%", "%PATH%"],
    "percent sign": ["%%"],
    "printf": [
        *words("%s %d %ld %lld %5.2lf %1$@ %1$s %2$-5d %-5d %zu %hhd %(n)d %(name)s %.2f %@ %u %i %x %05d %+d %#x"),
        *words("%*d %.*f %c %n %p %g %1$ld %'d %hd %jd %td %Lf %S %E %(x).2f %1$5.2f"),
        *("%(a b)s", "%(n) d"),
    ],
}
TEXT = """100 % sure|5%|{a b}|50% discount|100% sure|5% discount|5 % d'eau|20%-a|20%-os|5 %-e|100%ige|100 %ige
in % d. Werte|10% i więcej|5 % e mais|50% a day|10% o mniej|a % b|$5|$m|$bn|US$m|$5.20|it is 5%.|5%, 6%|[[a b]]|[a]
a@b|@name|:name|12:30:45|:smile:|{|}|{ }|%|http://|see http:// it|(%)|{ a, b }|C$|«%»|%20 e kadar|%50'si|5 %i
{one, two}|50%e|$ 5 and $ 6|50%discount|%discount|a<%b|30% c|% of|10% x 5% y|{a b c}|5\u00a0% d'eau"""
PARTS = {  # Texts without spaces around their placeholders.
    "%dx%d": ["%d", "%d"],
    "%dpx": ["%d"],
    "%sさん": ["%s"],
    "100%s": ["%s"],
    "100%%": ["%%"],
    "%d_%d": ["%d", "%d"],
    "%(a)sb": ["%(a)s"],
    "is: % d.": [],
    "is: % d": ["% d"],
    "{a}/{b}": ["{a}", "{b}"],
    "{{a}}{{b}}": ["{{a}}", "{{b}}"],
    "请写信到me@x.org谢谢": ["me@x.org"],
    "me@x.org.": ["me@x.org"],
    "[a](https://x.org/a).": ["https://x.org/a"],
    "(see https://x.org/a_(b))": ["https://x.org/a_(b)"],
    "https://x.org/(a": ["https://x.org/"],
} | {
    text.replace("@", "https://x.org/a"): ["https://x.org/a"]
    for text in words(
        "看@\uff0c谢谢 见@谢谢 (@) “@” «@». @. @, <@> 「@」 *@* '@' @? @\uff09 @… @\uff01 ดู@ครับ 링크@는 また@。"
    )
}


def found(text):
    return [match[0] for match in PLACEHOLDER.finditer(text)]


@pytest.mark.parametrize("name", sorted(PLACEHOLDERS))
def test_each_syntax_matches_its_examples(name):
    for example in WHOLE[name]:
        assert found(f"Go {example} on") == [example]
        assert re.fullmatch(PLACEHOLDERS[name], example), example


@pytest.mark.parametrize("text", re.split(r"[|\n]", TEXT))
def test_these_are_text(text):
    assert found(text) == []


@pytest.mark.parametrize("text", PARTS)
def test_a_placeholder_ends_before_text_that_it_touches(text):
    assert found(text) == PARTS[text]


def test_python_reads_the_same_placeholders():
    for text in ("a {x} b", "{0}{y!r:>{w}} c", "{} d {z:.2f}"):
        fields = [field for _, field, *_ in string.Formatter().parse(text) if field is not None]
        assert len(found(text)) == len(fields)
    for text in ("a %s b %5.2f, %-5d%% c", "%d of %d", "%+.1e and %x", "100%% of %s", "%05d%s"):
        values = [one for one in found(text) if one != "%%"]
        assert text % ((1,) * len(values))  # raises if there are more or fewer


class Losing(Words):
    """Translates to capitals, without these placeholders."""

    def _made(self, text):
        words = [re.sub(r"\{\w+\}|%s|%d|%\.2f|KEPT", "", word).upper() for word in text.split()]
        return text.split(), words, list(range(len(words)))


LOST = """Open "%s" now.|See ({name}).|({a}, {b})|from {a}-{b} to {c}.|%d-day trial|file_{n}.txt is here|{a}:{b} yes
¿{name}?|Delete “{name}”?|„{x}“ ist|the "{x}" and '{y}'|请打开「{name}」。|请输入{name}后|%dx%d pixels
{count}% of {total}%|see {a}...|*{x}* yes|a—{x}—b|{x}={y} yes|Price: $%.2f.|(in %s)|Only {b}% left|go "<b>%s</b>" on
go <b>"%s"</b> on|<i>{a}</i>/<i>{b}</i> of|go "<code>KEPT</code>" on|a<code>KEPT</code>c d|x <b>{a}{b}</b>. Yes
Only <b>{b}% left</b> now|so, <b>and"{a}"</b>{b}"""


@pytest.mark.parametrize("text", re.split(r"[|\n]", LOST))
def test_a_lost_placeholder_returns_with_the_signs_that_it_touched(text):
    written = translate(Losing(most=99), text, "html" if "<" in text else "text", sentences=lambda line: [line])
    assert written.casefold() == text.casefold()


def test_a_found_placeholder_may_have_other_signs_around_it():
    engine = Words({"Open": "Öffne", '"%s"': "„%s“", "now": "jetzt", "{n}px": "{n} Pixel"}.get, most=99)
    engine._made = lambda text: (
        text.split(),
        [engine.one(word) for word in text.split()],
        list(range(len(text.split()))),
    )
    assert translate(engine, 'Open "%s" now') == "Öffne „%s“ jetzt"
    assert translate(engine, "Open {n}px now") == "Öffne {n} Pixel jetzt"
