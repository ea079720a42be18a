"""A copy says what is not in it, and fails where a page could not be written."""

import html
import os
import re
import sqlite3
import struct
import subprocess
import sys
import urllib.parse
import urllib.request
from base64 import b64encode
from pathlib import Path
from zlib import compress, crc32

import pytest

import agl
import agl_ui.command
import agl_ui.exporting
from agl.cli import main
from agl_ui.data_sources import file_source
from agl_ui.exporting import Export

from .grouped import fill_with_group
from .long_trace import fill_with_long_trace
from .stores import apart, call_span

AGL = Path(sys.executable).with_name("agl")


def test_a_page_that_cannot_be_read_is_named_and_fails_the_export(tmp_path):
    file = tmp_path / "broken.db"
    rollout_id = apart(fill_with_group(file))
    whole = subprocess.run(
        [AGL, "ui", str(file), "--export", str(tmp_path / "whole")], capture_output=True, text=True
    )
    assert whole.returncode == 0, whole.stderr
    with sqlite3.connect(file) as store:
        store.execute("UPDATE span SET body = replace(body, '}', ']') WHERE body LIKE '%abc%'")
    done = subprocess.run(
        [AGL, "ui", str(file), "--export", str(tmp_path / "copy")], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert f"rollouts/{rollout_id} (damaged records)" in done.stderr
    assert (tmp_path / "copy" / "index.html").exists()


def test_pages_beyond_the_limit_are_counted(tmp_path, monkeypatch):
    file = tmp_path / "many.db"
    apart(fill_with_group(file))
    monkeypatch.setattr(agl_ui.exporting, "MOST_PAGES", 4)

    async def write():
        source = file_source(file)
        export = Export(source, tmp_path / "copy", 10)
        await export.write()
        await source.store.close()
        return export

    export = apart(write())
    assert export.left_out["others"] > 0
    assert export.failed == []


def test_an_export_without_a_terminal_tells_how_far_it_is(tmp_path, monkeypatch, capsys):
    file = tmp_path / "many.db"
    apart(fill_with_group(file))
    monkeypatch.setattr(agl_ui.command, "TELL_SECONDS", 0.0)
    with pytest.raises(SystemExit):
        main(["ui", str(file), "--export", str(tmp_path / "copy")])
    said = capsys.readouterr().err
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
def test_a_name_with_marks_of_addresses_is_exported_and_has_its_tab(tmp_path, serve, name):
    home = tmp_path / name
    home.mkdir()
    apart(fill_with_group(home / "store.db"))
    copy = tmp_path / "copy"
    done = subprocess.run(
        [AGL, "ui", str(home), "--export", str(copy)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(list(copy.glob("*.html"))) > 10, done.stderr
    for links in links_of(copy).values():
        assert [one for one in links if not (copy / urllib.parse.unquote(one)).is_file()] == []
    key = urllib.parse.quote(name, safe="")
    with urllib.request.urlopen(f"{serve(home / 'store.db')}/s/{key}/") as answer:
        assert "Run r" in re.sub("<[^>]*>", "", answer.read().decode())


def test_a_copy_says_why_of_trained_tokens_up_to_a_limit_that_is_printed(tmp_path):
    file = tmp_path / "store.db"
    apart(fill_with_group(file))
    for most, why, said in (("4", 4, "2 trained tokens have no page"), ("6", 6, "")):
        copy = tmp_path / f"copy{most}"
        done = subprocess.run(
            [AGL, "ui", str(file), "--export", str(copy), "--tokens", most],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        pages = [one.read_text() for one in copy.glob("*.html")]
        assert sum('id="why"' in one for one in pages) == why
        assert said in done.stderr
        assert ("no page" in done.stderr) == bool(said)
        assert not any("<form" in one for one in pages)
    text = next(one for one in pages if "Sampled tokens" in one and 'id="why"' not in one)
    assert len(re.findall(r'<a class="p\d" href="[^"]*#why"', text)) == 3


def test_a_copy_has_all_calls_and_spans_of_a_long_trace(tmp_path):
    file = tmp_path / "long.db"
    rollout_id = apart(fill_with_long_trace(file, 700, every=5))
    copy = tmp_path / "copy"
    done = subprocess.run(
        [AGL, "ui", str(file), "--export", str(copy)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    text = "".join(one.read_text() for one in copy.glob(f"rollouts-{rollout_id}*.html"))
    calls = {f"question {number}" for number in range(0, 700, 5)}
    assert {one for one in calls if f">{one}<" not in text} == set()
    assert {n for n in range(699) if n % 5 and f">tool.search {n}<" not in text} == set()
    # Each window once, and not each with each: 3 of calls, 7 of spans, of which one is on both.
    assert len(list(copy.glob(f"rollouts-{rollout_id}*.html"))) <= 2 * (3 + 7)
    assert " data-left-out" in text


def test_a_store_that_cannot_be_read_keeps_no_other_from_being_copied(tmp_path):
    for name in ("broken", "good"):
        (tmp_path / "agl-runs" / name).mkdir(parents=True)
    apart(fill_with_group(tmp_path / "agl-runs/good/store.db"))
    (tmp_path / "agl-runs/broken/store.db").write_text("no store " * 1000)
    done = subprocess.run(
        [AGL, "ui", "--export", "copy"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "broken is passed over" in done.stderr
    assert "Run r" in re.sub("<[^>]*>", "", (tmp_path / "copy/index.html").read_text())


def picture(side):
    """A PNG of so many dots a side, which no packing makes smaller."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    dots = chunk(b"IDAT", compress(os.urandom((side * 3 + 1) * side), 0))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + dots + chunk(b"IEND", b"")


def test_images_are_in_a_copy_as_images_however_large(tmp_path):
    file = tmp_path / "store.db"
    pictures = [picture(8), picture(600)]

    async def fill():
        store = agl.SqliteLightningStore(file)
        rollout = await store.start_rollout("look", mode="train", worker_id="w")
        urls = [f"data:image/png;base64,{b64encode(one).decode()}" for one in pictures]
        parts = [{"type": "image_url", "image_url": {"url": one}} for one in urls]
        await store.add_span(call_span(rollout, [{"role": "user", "content": parts}], "seen"))
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        await store.close()

    apart(fill())
    copy = tmp_path / "copy"
    done = subprocess.run(
        [AGL, "ui", str(file), "--export", str(copy)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {one.name: one.read_bytes() for one in copy.glob("*.png")}
    assert sorted(found.values(), key=len) == pictures
    text = "".join(one.read_text() for one in copy.glob("rollouts-ro*.html"))
    assert all(f' href="{name}"' in text for name in found)
    assert str(tmp_path) not in text


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    file = tmp_path / "store.db"
    apart(fill_with_group(file))
    done = subprocess.run(
        [AGL, "ui", str(file), "--export", "/proc/x"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--export '/proc/x': cannot be written" in done.stderr
