"""Tables of commands fit the terminal; ids stay whole, and nothing is lost in a pipe."""

import re

import pytest

from agl.cli.shared import read_and_close, table_text

COLUMNS = ["rollout_id", "status", "attempts", "input", "error"]
ROWS = [
    ["ro-0123456789ab", "succeeded", 1, {"question": "how many apples are there" * 3}, None],
    ["ro-ba9876543210", "failed", 2, "short", "agent: ValueError: " + "what went wrong " * 5],
]


@pytest.fixture(params=[80, 120])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return request.param


def lines(*arguments: object, **options: object) -> list[str]:
    text = table_text(*arguments, **options)  # type: ignore[arg-type]
    return [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in text.splitlines()]


def test_cut_table_has_a_line_for_each_row(width: int) -> None:
    shown = lines(COLUMNS, ROWS, cut=True)
    assert len(shown) == 2 + len(ROWS)
    assert max(map(len, shown)) <= width
    assert [line.split()[0] for line in shown[2:]] == ["ro-0123456789ab", "ro-ba9876543210"]
    assert all(line.endswith("…") for line in (shown[3],))
    assert "{'question': 'how m" in shown[2]


def test_folded_table_has_all_words_and_whole_ids(width: int) -> None:
    shown = lines(COLUMNS, ROWS)
    assert max(map(len, shown)) <= width
    assert sum("ro-0123456789ab" in line for line in shown) == 1
    assert " ".join(shown).count("wrong") == 5


def test_columns_of_less_use_are_left_out_where_there_is_no_room(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ["first_id", "second_id", "third_id", "fourth_id"]
    shown = lines(ids, [["x" * 24] * 4], less=["fourth_id", "second_id"])
    assert max(map(len, shown)) <= width
    left_out = {80: "fourth_id", 120: None}[width]
    assert (left_out is None) == ("fourth_id" in shown[0])
    assert "third_id" in shown[0]
    said = capsys.readouterr().err
    assert said == (
        f"no room for {left_out}: a wider terminal or --json shows it\n" if left_out else ""
    )


def test_table_in_a_pipe_is_whole() -> None:
    shown = lines(COLUMNS, ROWS, less=["attempts"], cut=True)
    assert len(shown) == 4
    assert "attempts" in shown[0]
    assert shown[3].endswith("what went wrong")
    assert "…" not in "".join(shown)


def test_table_without_rows_is_its_head() -> None:
    assert lines(["a", "b"], [])[0] == "a  b"


def test_table_in_a_pipe_has_a_line_for_each_row() -> None:
    assert lines(["name", "said"], [["ro-1", "two\nlines"], [None, "日本 x"]]) == [
        "name  said",
        "───────────────",
        "ro-1  two lines",
        "      日本 x",
    ]


def test_what_a_command_reads_is_not_written_out_by_the_event_loop() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise AssertionError("somebody wrote out all that was read")

    class Store:
        async def close(self) -> None:
            """Nothing is open."""

    async def read(store: object) -> Silent:
        return Silent()

    assert isinstance(read_and_close(Store(), read), Silent)  # type: ignore[arg-type]
