"""Windows of a long trace, and images, without a browser."""

import base64

import pytest

import agl
from agl_ui.data_sources import file_source
from agl_ui.images import decoded, image_of
from agl_ui.pages.spans import WINDOW, tree, window

from .long_trace import fill_with_long_trace
from .stores import apart

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    file = tmp_path_factory.mktemp("long") / "long.db"
    return file, fill_with_long_trace(file, 1_000)


def test_a_long_trace_is_read_a_window_at_a_time(long):
    file, rollout_id = long
    source = file_source(file)

    async def look(first):
        (attempt,) = await source.store.query_attempts(rollout_id)
        return await window(source, attempt, first)

    found = apart(look(250))
    assert (found.total, found.first, len(found.bars), found.is_tree) == (1_000, 250, WINDOW, False)
    assert [bar.span.name for bar in found.bars[:2]] == ["tool.search 250", "tool.search 251"]
    # Their parent, span 200, is not in this window, and is known all the same.
    assert [bar.depth for bar in found.bars[48:53]] == [1, 1, 0, 1, 1]
    # On the clock of all: 10 s, one span after the other.
    assert found.bars[0].left == pytest.approx(25.0, abs=0.1)
    assert (found.before, found.after) == (150, 350)
    # Beyond the end it is the last one.
    assert apart(look(5_000)).first == 900
    apart(source.store.close())


def test_spans_that_name_each_other_as_parents_are_shown():
    given = {"attributes": {}, "start_time": 1.0, "end_time": 2.0}
    spans = [
        agl.Span.from_attributes(name=one, span_id=one * 16, parent_id=of * 16, **given)
        for one, of in ("ab", "ba", "cc")
    ]
    assert sorted(bar.span.name for bar in tree(spans)) == ["a", "b", "c"]


def test_spans_without_a_start_are_shown_after_the_others():
    spans = [
        agl.Span.from_attributes(name=name, span_id=name * 16, attributes={}, start_time=start)
        for name, start in (("a", None), ("b", 1.0), ("c", None))
    ]
    assert [bar.span.name for bar in tree(spans)] == ["b", "a", "c"]
    assert len(tree(spans[::2])) == 2


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://evil.example/who-looks.png", "An image of elsewhere is not loaded"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "An image of kind 'image/svg+xml' is not shown"),
        ("data:text/html;base64,PGgxPg==", "An image of kind 'text/html' is not shown"),
        ("data:image/png,plain", "An image of kind 'image/png' is not shown"),
        ("data:image/png;base64,!!!", "An image that is no base64"),
        ("data:image/png;base64,PHN2Zy8+", "What calls itself image/png is another thing"),
        ('data:image/png;base64,"onerror="x', "An image that is no base64"),
        ("javascript:window.hurt=1", "An image of elsewhere is not loaded"),
    ],
)
def test_what_is_no_raster_is_not_shown(url, problem):
    image = image_of(url, "raw?image=0")
    assert image.source == ""
    assert image.problem.startswith(problem)


def test_a_large_image_is_a_click_away():
    url = f"data:image/png;base64,{PNG}{'A' * 2_000_000}"
    image = image_of(url, "raw?image=0")
    assert (image.source, image.link) == ("", "raw?image=0")
    assert decoded(url)[0] == "image/png"
