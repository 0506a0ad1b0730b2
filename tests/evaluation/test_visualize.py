"""Plots of attention: the page holds the model's weights, escapes text and loads nothing. Figures."""

import itertools
import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import needs_browser, shown
from matplotlib.backends.backend_agg import FigureCanvasAgg

import tf_transformer as tt
from tf_transformer.evaluation.visualize import attention_figure, attention_page
from tf_transformer.models.transformer import AttentionScores

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "<img src=x onerror=alert(1)>",
    "\"'`\\",
    "&lt;&quot;",
    "\u2028\u202e",
    "/*DATA*/",
    "</SCRIPT >",
    "$x$ ${x}",
    "\ud800",
    "\x00\n\x1b\x7f\x85",
    "",
]


class Page(HTMLParser):
    """A parsed page: elements, their attributes, and the text of scripts."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.scripts, self.attributes = [], [], []
        self.feed(html)
        self.close()
        self.data = json.loads(self.scripts[0])

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.elements and self.elements[-1] == "script":
            self.scripts[-1] += data


def pair_of(source, target, layers=2, heads=3):
    """Returns tokens, and random weights whose rows sum to 1. The decoder's are causal."""
    random, S, T = np.random.default_rng(0), len(source), len(target)

    def weights(rows, columns, causal=False):
        drawn = np.tril(random.random((layers, 1, heads, rows, columns)) ** 5, 0 if causal else columns)
        return list(drawn / drawn.sum(-1, keepdims=True))

    return source, target, AttentionScores(weights(S, S), weights(T, T, True), weights(T, S))


def test_the_page_has_the_models_weights(translator):
    pairs = [translator.attention("The old woman opens the red door."), translator.attention("Two doors.", "Zwei")]
    data = Page(attention_page(pairs)).data
    assert list(data["kinds"]) == list(AttentionScores._fields)
    assert len(data["pairs"]) == 2
    for pair, written in zip(pairs, data["pairs"], strict=True):
        assert (written["encoder"]["rows"], written["encoder"]["columns"]) == (pair.source, pair.source)
        assert (written["decoder"]["rows"], written["decoder"]["columns"]) == (pair.target, ["<s>", *pair.target[:-1]])
        assert (written["cross"]["rows"], written["cross"]["columns"]) == (pair.target, pair.source)
        for kind, scores in pair.scores._asdict().items():
            assert len(written[kind]["layers"]) == len(scores) == 1
            for layer, expected in zip(written[kind]["layers"], scores, strict=True):
                assert len(layer) == expected.shape[1] == 3
                columns = len(written[kind]["columns"])
                full = np.array([[row + [0] * (columns - len(row)) for row in head] for head in layer]) / 1000
                np.testing.assert_allclose(full, expected[0], atol=0.000501)
                np.testing.assert_allclose(full.sum(-1), 1, atol=0.0005 * columns)


def test_tokens_are_escaped():
    plain = Page(attention_page([pair_of(["a"] * 12, ["b"])]))
    page = Page(attention_page([pair_of(HOSTILE, HOSTILE[::-1])]))
    assert page.elements == plain.elements
    assert page.scripts[1] == plain.scripts[1]
    shown = [*HOSTILE[:-2], "\u2400\u240a\u241b\u2421\ufffd", ""]  # invisible characters are shown
    assert page.data["pairs"][0]["encoder"]["rows"] == shown
    assert page.data["pairs"][0]["decoder"]["rows"] == shown[::-1]


def test_the_page_loads_nothing():
    html = attention_page([pair_of(["a"], ["b"])])
    page = Page(html)
    assert [value for name, value in page.attributes if name in ("src", "href", "action", "srcset", "data")] == [
        "data:,"
    ]
    assert not re.search(
        r"https?:|//\w|url\(|@import|\bimport\b|fetch\(|XMLHttp|Socket|Beacon|EventSource|Worker", html
    )
    assert dict(page.attributes)["content"].startswith("default-src 'none'; script-src 'unsafe-inline'; style-src")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "expected a pair of sentences to draw, got none"),
        ([(["a", "b"], ["c"], pair_of(["a"], ["c"])[2])], r"encoder .* of layer 0: expected weights \(1, 3, 2, 2\)"),
        ([(["a"], ["c"], AttentionScores([np.ones((1, 1))], [], []))], r"\(1, 'heads', 1, 1\), got \(1, 1\)"),
    ],
)
def test_weights_that_do_not_fit_the_tokens(pairs, message):
    with pytest.raises(tt.BadInput, match=message):
        attention_page(pairs)


def test_a_figure_has_one_matrix_per_head(tmp_path):
    pair = pair_of(HOSTILE[:9], ["$", "a", "b", "c", "$_$"])
    figure = attention_figure(pair, "cross", layer=0, heads=[2, 0])
    figure.savefig(tmp_path / "figure.png")  # nothing is taken for mathematics
    drawn = [plot for plot in figure.axes if plot.images]
    assert [plot.get_title() for plot in drawn] == ["head 3", "head 1"]
    for plot, head in zip(drawn, (2, 0), strict=True):
        np.testing.assert_array_equal(plot.images[0].get_array(), pair[2].cross[0][0, head])
        assert [label.get_text() for label in plot.get_xticklabels()] == HOSTILE[:9]
        assert [label.get_text() for label in plot.get_yticklabels()] == pair[1]
    assert figure.get_suptitle() == "cross-attention, layer 1 of 2"
    assert len([plot for plot in attention_figure(pair, "decoder").axes if plot.images]) == 3


def test_a_figure_grows_with_its_tokens():
    """Each token has the same number of pixels, so labels do not overlap."""
    tokens = [f"token{i}" for i in range(61)]
    figure = attention_figure(pair_of(tokens, tokens[:7], layers=1, heads=1), "encoder")
    (plot,) = [plot for plot in figure.axes if plot.images]
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [label.get_window_extent(renderer) for label in plot.get_yticklabels()]
    assert all(upper.y0 >= lower.y1 for upper, lower in itertools.pairwise(boxes))
    boxes = [label.get_window_extent(renderer) for label in plot.get_xticklabels()]
    assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(boxes))


def test_bad_options_of_a_figure(monkeypatch):
    pair = pair_of(["a"], ["b"])
    for wrong, message in [
        ({"kind": "self"}, "kind: expected 'encoder', 'decoder' or 'cross', got 'self'"),
        ({"layer": 2}, "layer: expected one of 2, 0 to 1, got 2"),
        ({"heads": [0, 3]}, r"heads: expected some of 3, 0 to 2, got \[0, 3\]"),
        ({"heads": []}, r"got \[\]"),
    ]:
        with pytest.raises(tt.BadInput, match=message):
            attention_figure(pair, **wrong)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(tt.BadInput, match=r'takes matplotlib: pip install "tf-transformer\[pictures\]"'):
        attention_figure(pair)


@pytest.mark.slow
@needs_browser
def test_in_a_browser(tmp_path):
    """The page's script completes, also on hostile tokens."""
    pairs = [pair_of(HOSTILE[:9], ["▁Two", "</s>"], heads=11), pair_of(["x"], ["y"])]
    page = shown(attention_page(pairs), tmp_path).split("<script")[0]
    assert page.count("<li ") == 2 + 9  # cross-attention: target and source
    assert page.count('name="head"') == 11
    assert "▁Two <small>1</small>" in page
    assert "1 of 2" in page
    assert "<img" not in page.replace("&lt;img", "")


@pytest.mark.slow
@needs_browser
def test_a_matrix_that_overflows_at_the_right_shows_it(tmp_path):
    show = "document.querySelector('[value=matrix]').click(); document.body.dataset.seen = $('picture').className"
    for length, seen in ((97, "more"), (3, "")):
        page = shown(attention_page([pair_of(["x"] * length, ["y"] * 5)]), tmp_path, show)
        assert f'data-seen="{seen}"' in page
