"""Laws of documents, over random texts, markup, splitters and engines."""

import contextlib
import html
import itertools
import random
import re
from html.parser import HTMLParser
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from hostile import TEXTS

from tf_transformer.config import BadInput
from tf_transformer.extensions.documents import translate
from tf_transformer.extensions.documents.marked import Marked, sentences_in
from tf_transformer.extensions.interop.families.m2m100.family import NLLB
from tf_transformer.inference.engine import Engine, Hypothesis, TranslationResult
from tf_transformer.inference.words import Aligned, words_of

MANY = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
SPLITTERS = {
    "by rule": sentences_in("en"),
    "at stops": lambda line: re.findall(r"[^.]*\.+\s*|[^.]+$", line),
    "letters": list,
    "none": lambda line: [line],
}
WORD = st.text("abcÄé日本ß'-", min_size=1, max_size=5)
TEXT = st.text("ab日. ,;!?\n\r\t\u2028\x85\u3000\u00a0(“”)%{}@/:1\u0301\U0001f600\x00", max_size=60)
PLACEHOLDERS = ["{name}", "${x}", "%s", "%(n)d", "{{a.b}}", "https://x.org/a?b=1&c=2", "me+you@mail.example.org"]


class Words(Engine):
    """Translates words one by one, and gives them in another order, if it is to; it reads a few alone."""

    batch_size = 7
    metadata = {"source_language": "en"}  # noqa: RUF012

    def __init__(self, one=str, seed=None, most=11, aligns=True, loses=()):
        self.one, self.seed, self.aligns, self.loses = one, seed, aligns, loses
        self._metadata = {"max_source_length": most}
        self.seen, self.asked = [], []

    @property
    def options(self):
        return self._metadata

    def _made(self, text):
        text = text.decode() if isinstance(text, bytes) else text
        words = re.findall(r"\S+", text)
        order = list(range(min(len(words), self._metadata["max_source_length"])))
        if self.seed is not None:
            random.Random(f"{self.seed}{text!r}").shuffle(order)
        out = [word if re.match(r"[{$%\w+.]*[@{}:%]", word) else self.one(word) for word in (words[i] for i in order)]
        return words, [word for word in out if word not in self.loses], order

    def _replies(self, texts, request):
        for text in texts:
            self.seen.append(text)
            self.asked.append(text)
            words, out, _ = self._made(text)
            yield TranslationResult(
                text, (Hypothesis(" ".join(out), 0.0),), len(words), len(words) > len(out) + len(self.loses)
            )

    def _aligned(self, texts, request):
        for text in texts:
            self.asked.append(text)
            words, out, order = self._made(text)
            yield Aligned(text, " ".join(out), words, out, order[: len(out)], len(words) > len(order), len(words))


def squeezed(text):
    return re.sub(r"\s+", "", text)


@MANY
@hypothesis.given(TEXT, st.sampled_from(sorted(SPLITTERS)))
def test_sentences_and_what_is_between_them_are_the_text(text, name):
    marked = Marked(text).with_placeholders()
    spans = marked.sentences(SPLITTERS[name])
    assert all(start < end and text[start:end].strip() == text[start:end] for start, end in spans)
    assert spans == sorted(spans) and all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert not "".join(text[a[1] : b[0]] for a, b in itertools.pairwise([(0, 0), *spans, (len(text), 0)])).strip()
    assert marked.joined(spans, [marked.part(span).written() for span in spans]) == text


@MANY
@hypothesis.given(TEXT, st.sampled_from(sorted(SPLITTERS)), st.integers(1, 5))
def test_an_engine_that_changes_nothing_gives_the_document(text, name, most):
    class Same(Words):
        def _made(self, text):
            text = text.decode() if isinstance(text, bytes) else text
            tokens = re.findall(r"\S[\s\u0301]*", text)
            return tokens, ["".join(tokens[: self._metadata["max_source_length"]])], []

        def _replies(self, texts, request):
            for text in texts:
                tokens, (out,), _ = self._made(text)
                yield TranslationResult(text, (Hypothesis(out, 0.0),), len(tokens), len(tokens) > most)

    assert translate(Same(most=most), text, sentences=SPLITTERS[name]) == text


@MANY
@hypothesis.given(TEXT, st.integers(1, 9))
def test_a_text_is_cut_where_nothing_is_lost(text, parts):
    spans = Marked(text).cut(parts)
    assert squeezed("".join(text[start:end] for start, end in spans)) == squeezed(text)
    assert len(spans) <= parts and all(start < end for start, end in spans)


def test_a_text_is_cut_at_a_semicolon_then_a_comma_then_a_space():
    def cut(text):
        return [text[start:end] for start, end in Marked(text).cut(2)]

    assert cut("one, two three; four, five six") == ["one, two three;", "four, five six"]
    assert cut("one two, three four five") == ["one two,", "three four five"]
    assert cut("one two three four") == ["one two", "three four"]
    assert cut("日本日本、本日本日本") == ["日本日本、", "本日本日本"]
    assert cut("aaaaa\u0301\u0301aaaaa") == ["aaaaa\u0301\u0301", "aaaaa"]  # an accent stays with its letter


def test_a_long_sentence_is_translated_as_a_whole():
    numbers = [f"w{i}" for i in range(1_000)]
    engine = Words(str.upper, most=7)
    assert translate(engine, " ".join(numbers)) == " ".join(numbers).upper()
    assert translate(engine, "x" * 500) == "X" * 500


def test_a_text_of_one_sentence_is_translated_as_before_and_an_empty_one_stays():
    engine = Words(str.upper, seed=5)
    for text in ("Hello small world.", "日本。"):
        assert translate(engine, text) == engine(text)
    assert translate(engine, ["", " \n\t", "Go on. Stop."]) == ["", " \n\t", "GO ON. STOP."]
    assert translate(engine, b"a \xff") == translate(engine, "a \ufffd")


def test_a_space_comes_and_goes_with_the_writing():
    both = {"这是书。": "A book.", "好。": "Good.", "Yes.": "是。", "No.": "不。"}
    engine = Words(lambda word: both.get(word, word))
    assert translate(engine, "这是书。好。") == "A book. Good."
    assert translate(engine, "Yes. No.") == "是。不。"
    assert translate(engine, "Yes.\nNo.  Yes.") == "是。\n不。  是。"
    for source, target in [
        ("<b>这是书。</b>好。", "<b>A book.</b> Good."),
        ("<b>这是书。</b><i>好。</i>", "<b>A book.</b> <i>Good.</i>"),
        ("<b>Yes. </b>No.", "<b>是。</b>不。"),
        ("Yes. <i>No.</i>", "是。<i>不。</i>"),
        ("Yes.<sup>1</sup> No.<br>Yes.", "是。<sup>1</sup>不。<br>是。"),
        ("<b>好。</b>\n这是书。", "<b>Good.</b>\nA book."),
    ]:
        assert translate(engine, source, "html") == target
    both |= {"“好。”": "“Good.”"}
    assert translate(engine, "“好。”好。") == "“Good.” Good."


def test_codes_of_three_letters_split_as_those_of_two():
    """CLDR, by the package babel, has the codes of two letters."""
    aliases = pytest.importorskip("babel.core").get_global("language_aliases")
    aliases |= dict.fromkeys(["acq", "ajp", "ars"], "ar") | {"quy": "qu"}  # parts of macrolanguages
    texts = """Am 3. Tag ist z. B. no. 5 frei. Ja.|Mme. X. Av. Y Sr. Z. Oui?|На ул. Новой, т. е. там. Она.
यह है। वह है।|本です。はい。|Ο κ. Νίκος. Ναι; Όχι.|ሰላም። ነው።|Բարեւ։ Այո։|মি. খান। না।|Dhr. X, bijv. Y. Z.
Mieszka przy ul. Nowej. To jest np. dom.|Bylo to 3. ledna. Je to např. dům."""  # noqa: RUF001
    codes = {code.partition("_")[0] for code in NLLB.split()} & set(aliases)
    assert len(codes) > 120
    for code in codes:
        for text in re.split(r"[|\n]", texts):
            assert sentences_in(f"{code}_Latn")(text) == sentences_in(aliases[code])(text), (code, text)


def test_marks_within_words_and_numbers_of_notes_are_where_they_were():
    copies = """Water is H<sub>2</sub>O.|CO<sub>2</sub>, CO<sub>2</sub>|super<wbr>cali <img src=x>go|<b>W</b>orld go
10<sup>th</sup> of May|don<b>'t</b> stop|"<b>quoted</b>" word|<i>a</i>/<i>b</i> and
see <code>x</code>, <code>y</code>."""
    notes = """A claim<sup><a href='#1'>[1]</a></sup><sup><a>[2]</a></sup> is made.|It is so.<sup>3</sup> Next.
5 m<sup>2</sup>, or 10<sup>\u22126</sup> m<sup>2</sup>
word<sup>*</sup>, <b>bold</b><sup>\u2020</sup><sup>(b)</sup> x"""
    for text in re.split(r"[|\n]", f"{copies}\n{notes}"):
        assert translate(Words(most=99), text, "html") == text
    for text in re.split(r"[|\n]", notes):
        engine = Words(str.upper, most=99)
        assert translate(engine, text, "html").casefold() == text.casefold()
        assert not re.search("claim.*1|m2|106|bold.*b", "".join(engine.asked))
    reverse = Words(str.upper, most=99)
    reverse._made = lambda text: (text.split(), text.upper().split()[::-1], list(range(len(text.split())))[::-1])
    assert translate(reverse, "E = m<sup>2</sup>", "html") == "M<sup>2</sup> = E"
    assert translate(reverse, "go a<code>a</code><b>a</b>", "html").count("<code>a</code>") == 1


def test_a_sign_that_shares_a_token_is_with_its_word():
    assert translate(Words(str.upper), "<i>Go on:</i> now <b>(yes)</b>.", "html") == "<i>GO on:</i> NOW <b>(YES)</b>."


def test_splitters_that_lose_text_and_unknown_formats_are_refused():
    with pytest.raises(BadInput, match="joined are the text, got"):
        translate(Words(), "a b", sentences=str.split)
    with pytest.raises(BadInput, match="joined are the text, got"):
        translate(Words(), "a b", sentences=lambda line: [line, 3])
    with pytest.raises(BadInput, match="^sentences: expected a function from a line to its sentences, got 'x'$"):
        translate(Words(), "a b", sentences="x")
    with pytest.raises(BadInput, match="format: expected one of text, html, xml, srt, got 'md'"):
        translate(Words(), "a b", "md")
    with pytest.raises(BadInput, match="expected an engine that aligns"):
        Words(aligns=False).aligned(["a"])


@MANY
@hypothesis.example(["--a", "{name}", "-"], True, 1)
@hypothesis.given(
    st.lists(st.text("abé'-", min_size=1, max_size=3) | st.sampled_from(PLACEHOLDERS), max_size=9),
    st.booleans(),
    st.integers(0, 2**9),
)
def test_placeholders_and_addresses_come_out_once_each(words, loses, seed):
    text = " ".join(words)
    engine = Words(str.upper, seed, loses=PLACEHOLDERS if loses else ())
    found = translate(engine, text).split()
    assert sorted(word for word in found if word in PLACEHOLDERS) == sorted(w for w in words if w in PLACEHOLDERS)
    others = [word.upper() for word in words if word not in PLACEHOLDERS]
    assert sorted(word for word in found if word not in PLACEHOLDERS) == sorted(others)


def test_a_text_without_tokens_stays():
    class Nothing(Words):
        def _made(self, text):
            return [], [], []

    assert translate(Nothing(), "\u200b \u200d") == "\u200b \u200d"


def test_a_placeholder_that_comes_twice_comes_once():
    class Twice(Words):
        def _replies(self, texts, request):
            for reply in super()._replies(texts, request):
                yield reply._replace(hypotheses=(Hypothesis(f"{reply.text} {reply.text}", 0.0),))

    assert translate(Twice(), "go {x}") == "go go {x}"


def element(children):
    names = st.sampled_from(["b", "i", "a href='x?a=1&b=2'", 'span class="c d"', "p", "div", "code", "x-y"])
    return st.tuples(names, st.lists(children, max_size=4)).map(
        lambda one: f"<{one[0]}>{''.join(one[1])}</{one[0].split()[0]}>"
    )


LEAVES = WORD | st.sampled_from(
    [" ", ". ", "\n", "<br>", "<img src='a.png'>", "<!-- c -->", "&amp;", "&lt;", *PLACEHOLDERS]
)
MARKUP = st.lists(st.recursive(LEAVES, element, max_leaves=12), max_size=6).map("".join)


class Tags(HTMLParser):
    """The tags of a document; raises where they are not well nested."""

    def __init__(self, document):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(document)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(self.get_starttag_text())
        if tag not in ("br", "img", "li", "meta"):  # which nothing need end
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.tags.append(f"</{tag}>")
        assert self.open.pop() == tag

    def handle_comment(self, data):
        self.tags.append(data)

    def handle_data(self, data):
        self.text += data


@MANY
@hypothesis.given(MARKUP, st.none() | st.integers(0, 2**9), st.booleans(), st.integers(1, 11))
def test_tags_come_out_once_each_and_well_nested(document, seed, aligns, most):
    before, after = Tags(document), Tags(translate(Words(str.upper, seed, most, aligns), document, "html"))
    assert sorted(after.tags) == sorted(before.tags)
    assert sorted(squeezed(after.text).upper()) == sorted(squeezed(before.text).upper())
    if seed is None:
        assert after.tags == before.tags


@MANY
@hypothesis.given(TEXT)
def test_text_without_tags_is_translated_as_plain_text(text):
    text = re.sub(r"\s", " ", text).replace("\x00", "")  # which XML cannot have
    for name in ("html", "xml"):
        written = translate(Words(str.upper, 5), html.escape(text, quote=False), name)
        assert html.unescape(written) == translate(Words(str.upper, 5), text)


def test_elements_are_around_the_words_that_belong_to_theirs():
    def to(order):
        class Fixed(Words):
            def _made(self, text):
                words = text.split()
                return words, [words[i].upper() for i in order], order

        return lambda text: translate(Fixed(), text, "html", sentences=lambda line: [line])

    assert to([2, 0, 1])("a <b>b</b> c") == "C A <b>B</b>"
    assert to([2, 1, 0])("<i>a <b>b</b></i> c") == "C <i><b>B</b> A</i>"
    assert to([0, 2, 1])("a<br/> <b>b</b> <i>c</i>".replace("<br/>", "")) == "A <i>C</i> <b>B</b>"
    assert to([1, 0, 2])("a <b>b</b> <img src=x> c") == "<b>B</b> A <img src=x> C"
    assert to([0, 0, 1])("a <b>b</b>") == "A A <b>B</b>"

    class Marked(Words):
        def _aligned(self, texts, request):
            yield Aligned(texts[0], "Los jetzt.", ["▁Go", "▁now", "."], ["▁Los", "▁jetzt", "."], [0, 1, 1], False, 3)

    assert translate(Marked(), "Go <b>now</b>.", "html") == "Los <b>jetzt</b>."  # the stop is not its
    assert (
        translate(Words(str.upper), "<b><i>Go on. Stop</i> it</b> now.", "html") == "<b><i>GO ON. STOP</i> IT</b> NOW."
    )
    assert to([0, 0, 0])("a <b>b</b> c") == "A <b>A</b> A"  # a word that none attended to: by its place


def test_characters_are_written_as_markup():
    engine = Words(str.upper)
    page = "<pre>a\nb</pre><title>c</title><!DOCTYPE html>"
    assert translate(engine, page, "html") == "<pre>A\nB</pre><title>C</title><!DOCTYPE html>"
    assert translate(engine, "<p>Go on.&nbsp; Stop.</p>", "html") == "<p>GO ON.&nbsp; STOP.</p>"
    assert translate(engine, "a&nbsp;b &copy; &unknown; &amp;amp; 1 &lt; 2 AT&T", "html") == (
        "A B © &unknown; &amp;AMP; 1 &lt; 2 AT&amp;T"
    )


def test_xml_has_sentences_where_text_and_elements_are_mixed():
    engine = Words(str.upper)
    document = '<?xml version="1.0"?>\n<u id="1"><s>Go <g id="2">on</g> now. Yes</s><n/><P>a</P></u>\n'
    expected = document.replace("Go", "GO").replace("on<", "ON<").replace("now. Yes", "NOW. YES").replace(">a<", ">A<")
    assert translate(engine, document, "xml") == expected
    assert sorted(engine.seen) == ["Yes", "a"] and translate(engine, "<a>&x; b</a>", "xml") == "<a>&x; B</a>"


def test_words_are_linked_by_most_of_their_tokens():
    tokens = ["▁Er", "▁kommt", "▁heu", "te", "."]
    one = Aligned("He comes today.", "Er kommt heute.", ["▁He", "▁comes", "▁to", "day", "."], tokens, [0, 1, 3, 2, 5])
    assert one.words == (["He", "comes", "today", "."], ["Er", "kommt", "heute", "."], [(0, 0), (1, 1), (2, 2)])
    one = Aligned("a b c", "abcdef x", ["▁a", "▁b", "▁c"], ["▁ab", "cd", "ef", "▁x"], [0, 2, 2, 1])
    assert one.words[2] == [(2, 0), (1, 1)]
    text = "don't stop-gap, 日本 “x”"
    assert [text[start:end] for start, end in words_of(text)] == ["don't", "stop-gap", ",", "日", "本", "“", "x", "”"]


@MANY
@hypothesis.given(st.lists(WORD, min_size=1, max_size=6), st.lists(WORD, min_size=1, max_size=6), st.randoms())
def test_tokens_of_any_normalization_have_words(source, tokens, chance):
    links = [chance.randrange(len(source) + 1) for _ in tokens]
    one = Aligned(" ".join(source), "".join(tokens), [f"▁{word}x" for word in source], tokens, links)
    words, outputs, pairs = one.words
    assert all(0 <= s < len(words) and 0 <= t < len(outputs) for s, t in pairs)


def test_hostile_texts_are_documents():
    engine = Words(str, most=5)
    markup = ["<" * 99, "</b><i>", "<b", "<!--", "&#0;&#xD800;", "<a b='", "<script>", "<![CDATA[a]]>", "<?"]
    for text in [*TEXTS, *markup]:
        for name in ("text", "html", "xml"):
            # Bytes may be in no encoding, and XML not well formed.
            with contextlib.suppress(*[BadInput] * (name == "xml" or (name == "html" and isinstance(text, bytes)))):
                translate(engine, text, name)


@pytest.mark.parametrize("format", ["text", "html", "xml"])
def test_no_document_takes_for_ever(format):
    """Of what a stranger may send: thousands of tags in each other, unclosed or crossed, and long words."""
    assert translate(Words(most=99), "a" * 99_999, format) and translate(Words(most=99), "%" + "0" * 99_999, format)
    assert translate(Words(most=99), "a " + "<b>" * 2_000 + "x" + "</b>" * 2_000 + " c", format)
    parts = [("<p>", "</q>"), ("<b>x ", "</b>"), ("<x>t", "</x>"), ("<", ""), ("a", ""), ("%0", "0"), ("{", "}")]
    parts += [("好。", ""), ("é.", ""), ("{a, plural, ", ""), ("http://(", ""), ("{{ a", "}}"), ("<sup>1</sup>", "")]
    parts += [("{x} a@b.cc ", ""), ("<b>x</b> ", ""), ("x<wbr>", ""), ("<code>a. b</code> ", ""), ("&x;", "")]
    for before, after in parts:
        with contextlib.suppress(BadInput) if format == "xml" else contextlib.nullcontext():
            assert translate(Words(most=99), before * 2_000 + after * 2_000, format)


@pytest.mark.program
def test_translators_and_savedmodels_align_alike(translator, request):
    import tf_transformer as tt

    texts = ["Old dogs see a house.", "", "Two", "xyz 🙂 qq"]
    ours = translator.aligned(texts, beam_size=2)
    assert [one.text for one in ours] == translator(texts, beam_size=2)
    served = tt.load(request.getfixturevalue("saved")).aligned(texts, beam_size=2)
    assert [one._replace(source_tokens=[*one.source_tokens]) for one in served] == ours


@pytest.mark.program
def test_white_space_in_tokens_stays_there(tmp_path):
    """A vocabulary of the normal form "identity" has pieces such as U+3000 and U+00A0."""
    from conftest import array, random_model

    import tf_transformer as tt

    pairs = tt.toy_corpus.corpus(train=300)["train"]
    spaces = zip(pairs, "\u3000\xa0" * 150, strict=True)
    texts = [text.replace(" ", space, 2) for pair, space in spaces for text in pair]
    tokenizer = tt.Tokenizer.train_from_iterator(texts, 331, normalization="identity")
    model = random_model(331, 0, 0.0, {})
    embeddings, norm = array(model.embedding.embeddings).copy(), model.decoder_layers[-1].feed_forward_norm.norm
    beta = array(norm.beta)
    embeddings[[*map(tokenizer.processor.piece_to_id, "\u3000\xa0")]] += 4 * beta / (beta @ beta)  # likelier in outputs
    model.embedding.embeddings.assign(embeddings)
    ours = tt.Translator(model, tokenizer, beam_size=2, extra_length=7)
    ours.save(tmp_path / "1")
    served, expected = tt.load(tmp_path), ours.aligned(texts[:13])
    for side in ([one.source_tokens for one in expected], [one.tokens for one in expected]):
        assert {"\u3000", "\xa0"} <= set(itertools.chain.from_iterable(side))
    found = served.aligned(texts[:13])
    assert [one._replace(source_tokens=[*one.source_tokens]) for one in found] == expected
    assert [one.words for one in found] == [one.words for one in expected]
    page = "".join(f"<p>{text[:9]}<b>{text[9:]}</b></p>" for text in texts[:13])
    assert translate(served, page, "html") == translate(ours, page, "html")


PAGES = sorted((Path(__file__).parents[2] / "documents").iterdir())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_of_ten_languages(path):
    """Works in the public domain, with markup: each sentence is asked for once, tags and addresses come out."""
    document, format = path.read_text("utf-8"), path.suffix[1:]
    sentences, language = int(re.search(r"sentences: (\d+)", document)[1]), path.suffixes[0][1:]
    for seed, aligns in ((None, True), (5, True), (5, False)):
        engine = Words(str.upper, seed, most=99, aligns=aligns)
        engine.metadata = {"source_language": language}
        written = translate(engine, document, format)
        before, after = Tags(document), Tags(written)
        assert sorted(after.tags) == sorted(before.tags)
        assert sorted(squeezed(after.text.upper())) == sorted(squeezed(before.text.upper()))
        assert len(engine.asked) == sentences, engine.asked


JOINED = {
    "en": [
        ["1. Two doors are open."],
        ["1. Open the door.", "2) Close it."],
        ["II. Methods follow."],
        ["2.1. Data are here."],
        ["\u00a7 5. Law is law.", "Go on."],
        ["Yes.", "No.", "Go."],
        ["... And then?"],
        ["\U0001f600 Stop."],
        ["Go! !!"],
        ["He left.", "Go on. 5."],
        ["Go on.", "Ask Mr."],
    ],
    "fr": [
        ["M. Dupont dort."],
        ["Le Dr. Martin est l\u00e0.", "Il dort."],
        ["1. Deux portes."],
        ["Voici Mme. Curie."],
        ["Oui."],
    ],
    "es": [["1. Abre la puerta."], ["La Dra. Garc\u00eda duerme."]],
    "it": [["1. Apri."], ["Il Sig. Rossi dorme."]],
    "ru": [
        ["1. \u0414\u0432\u0435\u0440\u044c."],
        ["\u0414. \u0418\u0432\u0430\u043d\u043e\u0432 \u0441\u043f\u0438\u0442."],
    ],
    "zh": [["\u597d\u3002", "\u597d\u3002"], ["1. \u597d\u3002"]],
}


@pytest.mark.parametrize("language", JOINED)
def test_a_sentence_has_a_word_of_its_own(language):
    """Numbers of lists, initials and titles belong to the sentence after them, and stops to the one before."""
    for sentences in JOINED[language]:
        text = ("" if language == "zh" else " ").join(sentences)
        spans = Marked(text).sentences(sentences_in(language))
        assert [text[start:end] for start, end in spans] == sentences


@pytest.mark.parametrize("number", ["1.", "(2)", "[3]", "4)", "2.1.3.", "12.)"])
def test_a_number_of_a_list_on_its_line_is_copied(number):
    engine = Words(lambda word: word[::-1])
    assert translate(engine, f"{number}\nGo.\n{number}") == f"{number}\n.oG\n{number}"
    assert engine.seen == ["Go."]
