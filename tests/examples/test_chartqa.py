"""The agent that sees charts: its data, its score, its images on their way, and its scripts."""

import io
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, learned, play, run_script, scripts, write_parquet

from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls
from agl_records.training_data import TrainedModel
from agl_testing.echo_llm import EchoLLM

for module in ("langchain_openai", "langgraph", "matplotlib", "pyarrow"):
    pytest.importorskip(module)

FOLDER = EXAMPLES / "chartqa"


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small charts, as the script prepares them."""
    folder = tmp_path_factory.mktemp("charts")
    done = run_script(FOLDER / "prepare_data.py", CHARTQA_DATA_DIR=str(folder))
    assert [line.split(" in ")[0] for line in done.stdout.splitlines()] == [
        "train: 72 questions about 24 charts",
        "test: 24 questions about 8 charts",
    ]
    return folder


@pytest.fixture
def tasks(charts: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Three questions about one chart."""
    monkeypatch.setenv("CHARTQA_DATA_DIR", str(charts))
    return scripts.chart_tasks.load_tasks()[1][:3]


def test_small_charts_are_pictures_and_their_parts_are_apart(tasks: list[Any]) -> None:
    from PIL import Image

    train, test = scripts.chart_tasks.load_tasks()
    assert not {task["image"] for task in train} & {task["image"] for task in test}
    for task in tasks:
        with Image.open(task["image"]) as image:
            assert (image.format, image.size) == ("PNG", (320, 240))
    assert len({task["image"] for task in tasks}) == 1
    asked = {task["question"].partition(" were")[0] for task in tasks}
    assert asked == {"How many pens", "Where", "How many more pens"}


def test_files_of_chartqa_are_read(tasks: list[Any], tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "JPEG")
    about = {"image": {"bytes": file.getvalue(), "path": None}, "human_or_machine": 0}
    records = [{"query": f"Which {n}?", "label": [str(n)], **about} for n in range(3)]
    source, out = tmp_path / "data", tmp_path / "out"
    source.mkdir()
    for part in ("train", "test"):
        for shard in (0, 1):
            path = source / f"{part}-0000{shard}-of-00002-ab12.parquet"
            write_parquet(path, *records)
    done = run_script(FOLDER / "prepare_data.py", source, "--out", out, "--limit", 5)
    assert done.stdout.startswith("train: 5 questions about 1 charts")
    rows = pyarrow.parquet.read_table(out / "test_chartqa.parquet").to_pylist()
    found = [(row["question"], row["answers"]) for row in rows[-2:]]
    assert found == [("Which 0?", ["0"]), ("Which 1?", ["1"])]
    assert rows[0]["image"].endswith(".jpeg")
    assert (out / rows[0]["image"]).read_bytes() == file.getvalue()
    done = run_script(FOLDER / "prepare_data.py", tmp_path, "--out", out, code=1)
    assert "no train-*.parquet" in done.stderr


@pytest.mark.parametrize(
    ("answer", "right", "reward"),
    [
        ("42", "42", 1),
        ("41", "42", 1),
        ("39", "42", 0),
        ("1,050", "1000", 1),
        ("$ 12.5%", "12.5", 1),
        ("-42", "42", 0),
        ("0.01", "0", 0),
        ("oslo ", "Oslo", 1),
        ("Rome", "Oslo", 0),
        ("", "Oslo", 0),
        ("nan", "42", 0),
    ],
)
def test_answer_is_scored(tasks: list[Any], answer: str, right: str, reward: float) -> None:
    assert scripts.chart_tasks.relaxed_accuracy(answer, ["other", right]) == reward
    with pytest.raises(ValueError, match="at least one right answer"):
        scripts.chart_tasks.relaxed_accuracy(answer, [])


@pytest.mark.parametrize("urls", ["data", "file"])
def test_image_is_read_back_from_its_address(tasks: list[Any], urls: Any) -> None:
    path = Path(tasks[0]["image"])
    url = scripts.multimodal_utils.image_url(path, urls)
    assert url.startswith(f"{urls}:")
    assert scripts.multimodal_utils.read_image(url) == path.read_bytes()
    with pytest.raises(ValueError, match="expected data:"):
        scripts.multimodal_utils.read_image("https://example.org/chart.png")


def nodes(outcome: Any) -> list[str | None]:
    return [call.agent_name for call in model_calls(outcome.spans)]


@pytest.fixture
def picture(tasks: list[Any]) -> bytes:
    return Path(tasks[0]["image"]).read_bytes()


@pytest.mark.parametrize("urls", ["data", "file"])
async def test_chart_goes_through_the_gateway_into_rows(tasks, picture, urls) -> None:
    agent = scripts.chartqa_agent.LitChartQAAgent(image_urls=urls)
    outcome = await play(agent, tasks[2], scripts.scripted_llm.scripted_reply)
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 1)
    rows = TraceToRows().adapt(outcome.spans).rows
    seen = ["observe", "extract", "calculate", "check", "refine", "check"]
    assert [row.agent_name for row in rows] == seen
    assert [len(row.images) for row in rows] == [1, 1, 0, 0, 0, 0]
    for row in rows[:2]:
        assert row.images[0].startswith(f"{urls}:")
        assert scripts.multimodal_utils.read_image(row.images[0]) == picture


async def test_another_model_sees_and_its_calls_are_left_out_by_name(tasks) -> None:
    agent = scripts.chartqa_agent.LitChartQAAgent("vision")
    outcome = await play(agent, tasks[0], scripts.scripted_llm.scripted_reply, "vision")
    assert outcome.reward == 1
    assert [request["model"] for request in outcome.requests] == ["vision"] * 2 + ["policy"] * 2
    adapter = TraceToRows(agent_match="calculate|refine")
    result = adapter.adapt(outcome.spans, model=TrainedModel(name="policy"))
    assert [row.agent_name for row in result.rows] == ["calculate"]
    assert result.ledger.reasons() == {"other_model": 2, "agent_not_selected": 1}


async def test_wrong_answer_is_no_reward_and_turns_are_limited(tasks) -> None:
    agent = scripts.chartqa_agent.LitChartQAAgent(max_turns=3)
    outcome = await play(agent, tasks[0], lambda request: "no answer at all")
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 0)
    assert nodes(outcome) == ["observe", "extract", "calculate", *["check", "refine"] * 2, "check"]


async def test_chart_that_is_not_there_fails_the_attempt(tasks, tmp_path) -> None:
    agent = scripts.chartqa_agent.LitChartQAAgent()
    task = {**tasks[0], "image": str(tmp_path / "no.png")}
    outcome = await play(agent, task, lambda request: "<answer>1</answer>")
    assert (outcome.rollout.status, outcome.reward) == ("failed", None)
    assert outcome.requests == []


@pytest.mark.parametrize("proxy", ["0", "1"])
def test_debugging_asks_a_model_elsewhere(tasks: list[Any], charts: Path, proxy: str) -> None:
    with EchoLLM(scripts.scripted_llm.scripted_reply) as llm:
        openai = {"OPENAI_API_BASE": llm.url, "OPENAI_API_KEY": "sk-none", "OPENAI_MODEL": "theirs"}
        variables = {"CHARTQA_DATA_DIR": str(charts), "USE_LLM_PROXY": proxy, **openai}
        done = run_script(FOLDER / "debug_chartqa_agent.py", **variables)
    lines = done.stdout.splitlines()
    assert [line.partition("  ")[0] for line in lines] == ["1"] * 3
    ends = ["4 rows, 2 with a chart"] * 2 + ["6 rows, 2 with a chart"]
    answers = [task["private"]["answers"][0] for task in tasks]
    assert [line.split("  ")[2] for line in lines] == (ends if proxy == "1" else answers)
    assert {request["model"] for request in llm.requests} == {"theirs"}
    said = [request["messages"][0]["content"] for request in llm.requests]
    parts = [part for content in said if isinstance(content, list) for part in content[1:]]
    urls = {part["image_url"]["url"][:5] for part in parts}
    # A server of this machine reads the files itself.
    assert urls == ({"file:"} if proxy == "1" else {"data:"})


def test_scripts_say_what_is_missing(charts: Path, tmp_path: Path) -> None:
    done = run_script(FOLDER / "debug_chartqa_agent.py", CHARTQA_DATA_DIR=str(charts), code=2)
    assert "OPENAI_API_KEY" in done.stderr
    done = run_script(FOLDER / "debug_chartqa_agent.py", CHARTQA_DATA_DIR=str(tmp_path), code=1)
    assert "python prepare_data.py" in done.stderr
    done = run_script(FOLDER / "train_chartqa_agent.py", "debug", "--n-runners", 2, code=2)
    assert "take no images" in done.stderr
    assert "OPENAI_API_BASE" in done.stderr


@pytest.mark.slow
def test_tiny_model_learns_from_what_was_read_off(charts: Path, tmp_path: Path) -> None:
    pytest.importorskip("agl_torch")
    command = (FOLDER / "train_chartqa_agent.py", "tiny", "--out", tmp_path)
    done = run_script(*command, CHARTQA_DATA_DIR=str(charts))
    assert "take token ids and no images" in done.stdout
    # Each of 64 rollouts looked at its chart twice.
    assert [step["calls/excluded/other_model"] for step in learned(tmp_path)] == [128] * 10
