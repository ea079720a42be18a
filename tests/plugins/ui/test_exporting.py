"""A copy says what is not in it, and fails where a page could not be written."""

import html
import itertools
import os
import re
import sqlite3
import urllib.parse
import urllib.request
from base64 import b64encode

import pytest

import agl_ui.command
import agl_ui.exporting
from agl_ui.data_sources import file_source
from agl_ui.exporting import Export

from .grouped import fill_with_group
from .long_trace import fill_with_long_trace
from .stores import apart, call_span, filled, page_of, png_of


@pytest.fixture
def export(agl, tmp_path):
    """Copies the pages of a store to a new folder, which it gives with what was said."""
    numbers = itertools.count()

    def run(file, *options, code=0):
        copy = tmp_path / f"copy{next(numbers)}"
        done = agl("ui", *map(str, file), "--export", str(copy), *options)
        assert done.code == code, done.err
        return copy, done.err

    return lambda file, *options, **more: run([file] if file else [], *options, **more)


@pytest.fixture
def group(tmp_path):
    """The file of a store with a step of two rollouts."""
    fill_with_group(tmp_path / "group.db")
    return tmp_path / "group.db"


def test_a_page_that_cannot_be_read_is_named_and_fails_the_export(export, group):
    export(group)
    with sqlite3.connect(group) as store:
        store.execute("UPDATE span SET body = replace(body, '}', ']') WHERE body LIKE '%abc%'")
        (rollout_id,) = store.execute("SELECT rollout_id FROM rollout ORDER BY n").fetchone()
    copy, said = export(group, code=1)
    assert f"rollouts/{rollout_id} (damaged records)" in said
    assert (copy / "index.html").exists()


def test_pages_beyond_the_limit_are_counted(tmp_path, group, monkeypatch):
    monkeypatch.setattr(agl_ui.exporting, "MOST_PAGES", 4)

    async def write():
        source = file_source(group)
        export = Export(source, tmp_path / "copy", 10)
        await export.write()
        await source.store.close()
        return export

    export = apart(write())
    assert export.left_out["others"] > 0
    assert export.failed == []


def test_an_export_without_a_terminal_tells_how_far_it_is(export, group, monkeypatch):
    monkeypatch.setattr(agl_ui.command, "TELL_SECONDS", 0.0)
    _, said = export(group)
    told = re.findall(r"^(\d+) pages are written, (\d+) more are known$", said, re.M)
    assert told[-1] == (re.search(r"^(\d+) pages;", said, re.M)[1], "0")
    assert len(told) > 3


def links_of(copy):
    """Page -> the files that it leads to, beside those that each has."""
    found = {}
    for file in copy.glob("*.html"):
        links = re.findall(r' href="([^"#]+)', file.read_text())
        found[file.name] = {html.unescape(one) for one in links}
    return found


@pytest.mark.parametrize("name", ["a#b?c%20 d", "plain"])
def test_a_name_with_marks_of_addresses_is_exported_and_has_its_tab(tmp_path, export, serve, name):
    home = tmp_path / name
    home.mkdir()
    fill_with_group(home / "store.db")
    copy, said = export(home)
    assert len(list(copy.glob("*.html"))) > 10, said
    for links in links_of(copy).values():
        assert [one for one in links if not (copy / urllib.parse.unquote(one)).is_file()] == []
    key = urllib.parse.quote(name, safe="")
    page = page_of(f"{serve(home / 'store.db')}/s/{key}/")
    assert "Run r" in re.sub("<[^>]*>", "", page)


def test_a_copy_says_why_of_trained_tokens_up_to_a_limit_that_is_printed(export, group):
    for most, why, left_out in (("4", 4, "2 trained tokens have no page"), ("6", 6, "")):
        copy, said = export(group, "--tokens", most)
        pages = [one.read_text() for one in copy.glob("*.html")]
        assert sum('id="why"' in one for one in pages) == why
        assert left_out in said
        assert ("no page" in said) == bool(left_out)
        assert not any("<form" in one for one in pages)
    text = next(one for one in pages if "Sampled tokens" in one and 'id="why"' not in one)
    assert len(re.findall(r'<a class="p\d" href="[^"]*#why"', text)) == 3


def test_a_copy_has_all_calls_and_spans_of_a_long_trace(tmp_path, export):
    rollout_id = fill_with_long_trace(tmp_path / "long.db", 700, every=5)
    copy, _ = export(tmp_path / "long.db")
    pages = [one.read_text() for one in copy.glob(f"rollouts-{rollout_id}*.html")]
    text = "".join(pages)
    calls = {f"question {number}" for number in range(0, 700, 5)}
    assert {one for one in calls if f">{one}<" not in text} == set()
    assert {n for n in range(699) if n % 5 and f">tool.search {n}<" not in text} == set()
    # Each window once, and not each with each: 3 of calls, 7 of spans, of which one is on both.
    assert len(pages) <= 2 * (3 + 7)
    assert " data-left-out" in text


def test_a_store_that_cannot_be_read_keeps_no_other_from_being_copied(here, export, caplog):
    for name in ("broken", "good"):
        (here / "agl-runs" / name).mkdir(parents=True)
    fill_with_group(here / "agl-runs/good/store.db")
    (here / "agl-runs/broken/store.db").write_text("no store " * 1000)
    copy, _ = export(None)
    assert "broken is passed over" in caplog.text
    assert "Run r" in re.sub("<[^>]*>", "", (copy / "index.html").read_text())


def test_images_are_in_a_copy_as_images_however_large(tmp_path, export):
    # No packing makes it smaller.
    pictures = [png_of(side, os.urandom((side * 3 + 1) * side), 0) for side in (8, 600)]

    async def fill(store):
        rollout = await store.start_rollout("look", mode="train", worker_id="w")
        urls = [f"data:image/png;base64,{b64encode(one).decode()}" for one in pictures]
        parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
        await store.add_span(call_span(rollout, [{"role": "user", "content": parts}], "seen"))
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")

    filled(tmp_path / "store.db", fill)
    copy, _ = export(tmp_path / "store.db")
    found = {one.name: one.read_bytes() for one in copy.glob("*.png")}
    assert sorted(found.values(), key=len) == pictures
    text = "".join(one.read_text() for one in copy.glob("rollouts-ro*.html"))
    assert all(f' href="{name}"' in text for name in found)
    assert str(tmp_path) not in text


def test_a_folder_that_cannot_be_made_is_named(agl, group):
    done = agl("ui", str(group), "--export", "/proc/x")
    assert done.code == 2
    assert "--export '/proc/x': cannot be written" in done.err
