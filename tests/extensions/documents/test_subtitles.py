"""Subtitles: all but words is kept, and sentences over lines and captions are translated as one."""

import re

import pytest
import srt
from hypothesis import given
from hypothesis import strategies as st
from test_documents import MANY, Words, squeezed

from tf_transformer.config import BadInput
from tf_transformer.extensions.documents import translate
from tf_transformer.inference.engine import Hypothesis, TranslationResult
from tf_transformer.inference.words import Aligned

FILM = (
    "\ufeff"
    + """1
00:00:01,000 --> 00:00:03,500
The old woman opens
the red door, and then

2
00:00:03,600 --> 00:00:05,000
she sees two small dogs.

3
00:00:05,100 --> 00:00:07,000
- Who is there?
- It's only me, Mrs. Smith.

4
00:00:07,000 --> 00:00:09,000  X1:100 X2:200 Y1:10 Y2:20
{\\an8}<i>Meanwhile, in the house
of the old king...</i>

5
00:00:08,500 --> 00:00:10,000


6
00:00:10,000 --> 00:00:12,000
♪ I see trees of green ♪
♪ Red roses too ♪

7
00:00:12,500 --> 00:00:14,000
[door slams]

8
00:00:14,000 --> 00:00:16,000
JOHN: I never said
that I would <b>not</b> come, Dr. No.

9
00:00:16,100 --> 00:00:18,000
<font color="#ff0000">Stop!</font> He said <i>no</i> to
me & to you <3.

""".replace("\n", "\r\n")
)
HARD = """1
00:00:01.000 --> 00:00:02.000
MAN #1: Where are
you going?
WOMAN: Nowhere.
2
00:00:02,000 --> 00:00:03,000
No number line before this one
00:00:03,000 --> 00:00:04,000
has no number at all,
right?

7
00:00:04,000 --> 00:00:06,000
<i>one</i> two <i>three</i>

8
00:00:06,000 --> 00:00:06,500
9
00:00:06,000 --> 00:00:08,000
- <i>Over the radio:</i> go
  on!
\u2013 Yes, "%s" and {name}.
♪♪

10
00:00:05,000 --> 00:00:09,000
Overlapping\u00a0: voila\u202f!

A blank line above, and 5 % of it.

11
00:00:09,100 --> 00:00:09,900
It happened on 3 May 1990,
when Mr.
Smith met the

12
00:00:10,000 --> 00:00:11,000
<i>President</i> of the

13
00:00:11,000 --> 00:00:12,000
United States of America.

14
00:00:13,000 --> 00:00:14,000
{\\an8}(笑声)
他说\uff1a“好。”
她走了。   """
FILES = {"film": FILM, "hard": HARD}
TIME = "00:00:0{},000 --> 00:00:0{},000"


class Same(Words):
    """Copies texts with their whitespace."""

    def _replies(self, texts, request):
        self.seen += texts
        return (TranslationResult(text, (Hypothesis(text, 0.0),), 3, False) for text in texts)

    def _aligned(self, texts, request):
        for text in texts:
            self.seen.append(text)
            tokens = [f"▁{word}" for word in text.split()]
            yield Aligned(text, text, tokens, tokens, list(range(len(tokens))), False, 3)


def captions(*texts, gap=0):
    """Captions of one second each."""
    times = [TIME.format(i * (1 + gap), i * (1 + gap) + 1) for i in range(len(texts))]
    return "".join(f"{i}\n{time}\n{text}\n\n" for i, (time, text) in enumerate(zip(times, texts, strict=True), 1))


def asked(*texts, gap=0):
    engine = Same(most=99)
    translate(engine, captions(*texts, gap=gap), "srt")
    return sorted(engine.seen)


def translated(outputs, *texts):
    """Returns the captions' texts if sentences have these outputs."""
    engine = Words(lambda text: outputs.get(text, text), most=99)
    engine._made = lambda text: ([text], [engine.one(text)], [0])
    return [caption.content for caption in srt.parse(translate(engine, captions(*texts), "srt"))]


@pytest.mark.parametrize("name", FILES)
def test_an_engine_that_changes_nothing_gives_the_file(name):
    assert translate(Same(most=99), FILES[name], "srt") == FILES[name]


@pytest.mark.parametrize("name", FILES)
def test_only_words_change(name):
    """Numbers, times, order and the lines of each caption are those of the package srt."""
    written = translate(Words(lambda word: f"<{word.upper()}", most=99), FILES[name], "srt")

    def layout(text):
        return [(one.index, one.start, one.end, one.proprietary, one.content.count("\n")) for one in srt.parse(text)]

    assert layout(written) == layout(FILES[name])
    assert re.findall("(?m)^.*-->.*$", written) == re.findall("(?m)^.*-->.*$", FILES[name])
    assert written.count("\r") == FILES[name].count("\r") and written[:1] == FILES[name][:1]
    upper = translate(Words(str.upper, most=99), FILES[name], "srt")
    assert squeezed(upper).casefold() == squeezed(FILES[name]).casefold()


@MANY
@given(st.lists(st.text("ab. ,-<i>/♪[é日\n", max_size=30), max_size=5))
def test_any_captions_are_kept(texts):
    document = captions(*texts)
    assert translate(Same(most=99), document, "srt") == document


def test_a_sentence_may_have_several_lines_and_captions():
    assert asked("The old woman\nopens the door.") == ["The old woman opens the door."]
    assert asked("The old woman", "opens the door, and", "sees a dog. It", "is red.") == [
        "It is red.",
        "The old woman opens the door, and sees a dog.",
    ]
    assert asked("<i>The old woman</i>", "<i>opens it.</i>") == ["The old woman opens it."]
    most_end_a_sentence = ["I met", "Peter.", "He is", "Anna.", "Go."]
    assert asked(*most_end_a_sentence) == ["Go.", "He is Anna.", "I met Peter."]
    assert asked("I met", "Peter.", "He", "Is", "Go") == ["Go", "He", "I met", "Is", "Peter."]


def test_speakers_songs_and_sounds_are_apart():
    assert asked("- Who is\nthere?\n- Me.") == ["Me.", "Who is there?"]
    assert asked("I know", "- what?") == ["I know", "what?"]
    assert asked("JOHN: Go\nANNA: No") == ["ANNA: No", "JOHN: Go"]
    assert asked("♪ la la ♪\n♪ le le ♪") == ["la la", "le le"]
    assert asked("she goes\n[door slams]\nand falls") == ["[door slams]", "and falls", "she goes"]
    assert asked("she goes", "{\\an8}into", "♪♪", "it") == ["into", "it", "she goes"]
    assert asked("she goes", "into it", gap=2) == ["into it", "she goes"]  # a pause of two seconds


def test_an_output_is_split_by_the_share_of_each_line():
    outputs = {"The old woman opens it.": "Die sehr alte Frau da macht es auf."}
    assert translated(outputs, "The old woman\nopens it.") == ["Die sehr alte Frau da\nmacht es auf."]
    assert translated(outputs, "The old woman", "opens it.") == ["Die sehr alte Frau da", "macht es auf."]
    assert translated({"No one": "Niemand"}, "No\none") == ["Niemand"]  # an empty line would end the caption
    assert translated({"no one": "niemand"}, "no", "one") == ["niemand", ""]
    assert translated({"no one.": "niemand."}, "no", "one.\nYes.\nNo.") == ["niemand.", "Yes.\nNo."]
    assert translated({"No one.": "Niemand."}, "No\none.\nYes.") == ["Niemand.\nYes."]
    assert translated({"I know that it is so.": "我知道事情就是这样。"}, "I know that\nit is so.") == [
        "我知道事情\n就是这样。"
    ]
    tagged, upper = "He <i>said\nno to</i> me, <b>{x}\nor</b> not.", "HE <i>SAID\nNO TO</i> ME, <b>{x}\nOR</b> NOT."
    assert translate(Words(str.upper, most=99), captions(tagged), "srt") == captions(upper)


def test_malformed_files_are_refused_in_a_line():
    with pytest.raises(BadInput, match=r"^line 1: expected a time such as .*, got 'WEBVTT\\n'$"):
        translate(Words(), "WEBVTT\n\n" + captions("a"), "srt")
    with pytest.raises(BadInput, match=r"^line 6: expected a time such as .*, got '00:00:xx --> 00:00:02,000\\n'$"):
        translate(Words(), captions("a") + "2\n00:00:xx --> 00:00:02,000\nb", "srt")
    with pytest.raises(BadInput, match=r"^line 2: expected a time such as .*, got '00:00:0x --> 00:00:02\\n'$"):
        translate(Words(), "1\n00:00:0x --> 00:00:02\nHello\n", "srt")
    with pytest.raises(BadInput, match=r"^line 2: expected a time such as .*, got 'Hello\\n'$"):
        translate(Words(), "12\nHello\n", "srt")
    with pytest.raises(BadInput, match="^line 6: expected a time such as .*, got '999"):
        translate(Words(), captions("a") + "2\n" + "9" * 99 + ":00:00,000 --> 00:00:02,000\nb", "srt")
    assert [translate(Words(), text, "srt") for text in ("", "\ufeff\n", " \r\n")] == [
        "",
        "\ufeff\n",
        " \r\n",
    ]


LONG = ["1", "<", "\u266a", "-", '"', "1:", "<a", "{\\", "A:", "1:1:1" + 99_999 * "1", "<i>"]
LINES = ["\n", "1\n", "a\n", "a ", TIME.format(1, 2) + "\n"]


@pytest.mark.parametrize(("part", "size"), [*((part, 99_999) for part in LONG), *((part, 19_999) for part in LINES)])
def test_no_file_takes_for_ever(part, size):
    head = captions("a") + TIME.format(1, 2) + "\n"
    assert translate(Words(most=99), head + part * max(1, size // len(part)), "srt")
