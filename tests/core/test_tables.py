"""Tables of commands: a line for each row, and nothing is lost in a pipe."""

from agl.cli.shared import table_text

COLUMNS = ["rollout_id", "status", "attempts", "input", "error"]
ROWS = [
    ["ro-0123456789ab", "succeeded", 1, {"question": "how many apples are there" * 3}, None],
    ["ro-ba9876543210", "failed", 2, "short", "agent: ValueError: " + "what went wrong " * 5],
]


def lines(*arguments: object, **options: object) -> list[str]:
    return table_text(*arguments, **options).splitlines()


def test_cut_table_is_as_wide_as_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = lines(COLUMNS, ROWS, cut=True)
    assert max(map(len, shown)) == 80
    assert [line.split()[0] for line in shown[2:]] == ["ro-0123456789ab", "ro-ba9876543210"]
    assert shown[2].endswith("…")
    assert len(lines(COLUMNS, ROWS)[2]) > 80


def test_table_in_a_pipe_is_whole():
    shown = lines(COLUMNS, ROWS, cut=True)
    assert len(shown) == 4
    assert "attempts" in shown[0]
    assert shown[3].endswith("what went wrong")
    assert "…" not in "".join(shown)


def test_table_without_rows_is_its_head():
    assert lines(["a", "b"], [])[0] == "a  b"


def test_table_in_a_pipe_has_a_line_for_each_row():
    assert lines(["name", "said"], [["ro-1", "two\nlines"], [None, "日本 x"]]) == [
        "name  said",
        "───────────────",
        "ro-1  two lines",
        "      日本 x",
    ]
