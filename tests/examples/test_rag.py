"""The agent that looks things up: its passages, its score, its tool over HTTP, and its scripts."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from example_bench import EXAMPLES, check_alone, play, run_script, scripts, write_parquet

from agl_adapters import TraceToRows
from agl_records.calls.reader import model_calls

for module in ("agents", "mcp"):
    pytest.importorskip(module)

FOLDER = EXAMPLES / "rag"
SCRIPT = FOLDER / "train_rag.py"
TASK = {
    "question": "Of which country is the city where Ada Lind was born the capital?",
    "private": {"answers": ["Norland"]},
}


@pytest.fixture
def retriever(on_path: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with scripts.wiki_retriever_mcp.retriever_process() as url:
        monkeypatch.setenv("WIKI_RETRIEVER_URL", url)
        yield url


def test_small_world_is_the_same_each_time_and_its_parts_are_apart() -> None:
    train, test = scripts.wiki_tasks.load_tasks()
    assert (train, test) == scripts.wiki_tasks.load_tasks()
    assert (len(train), len(test), len(scripts.wiki_tasks.load_passages())) == (80, 16, 42)
    assert not {task["question"] for task in train} & {task["question"] for task in test}


def test_passages_are_found_by_their_rare_words() -> None:
    passages = ["Oslo. Oslo lies on a fjord.", "Paris. Paris lies on the Seine.", "Rome. A city."]
    search = scripts.retriever.WordRetriever(passages).search
    assert search("which city lies on the SEINE?", 1) == ["Paris. Paris lies on the Seine."]
    assert search("Oslo Paris", 5) == passages[:2]
    assert search("Berlin", 3) == []


def test_passages_are_found_by_vectors(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    import numpy as np

    words = ["oslo", "paris", "rome"]

    def encode(texts: list[str]) -> Any:
        rows = [[float(word in text.lower()) for word in words] for text in texts]
        return np.array(rows, dtype=np.float32)

    passages = ["Oslo is cold.", "Paris is large.", "Rome is old."]
    index = faiss.IndexHNSWFlat(3, 32)
    index.add(encode(passages))
    assert scripts.retriever.VectorRetriever(passages, index, encode).search("is Rome old?", 1) == [
        "Rome is old."
    ]
    with pytest.raises(ValueError, match="3 vectors and there are 2 passages"):
        scripts.retriever.VectorRetriever(passages[:2], index, encode)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("<answer>Norland</answer>", 1),
        ("I think <answer>Sudria</answer> or rather <answer> the norland. </answer>", 1),
        ("<answer>Norland Sudria</answer>", 2 / 3),
        ("<answer>the old kingdom</answer>", 1),
        ("<answer>Sudria</answer>", 0),
        ("<answer></answer>", 0),
        ("Norland", 0),
        ("", 0),
    ],
)
def test_answer_is_scored(said: str, reward: float) -> None:
    assert scripts.metric_utils.score(said, ["Norland", "old kingdom"]) == pytest.approx(reward)


def test_exact_match_takes_no_part_of_an_answer() -> None:
    assert (
        scripts.metric_utils.exact_match("The Norland!", ["Norland"]),
        scripts.metric_utils.exact_match("Nor", ["Norland"]),
    ) == (1, 0)
    with pytest.raises(ValueError, match="at least one right answer"):
        scripts.metric_utils.score("<answer>x</answer>", [])


def prepare(*arguments: object) -> str:
    return run_script(FOLDER / "prepare_data.py", *arguments).stdout


def test_musique_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paragraph = {"idx": 0, "title": "Oslo", "paragraph_text": "A city.", "is_supporting": True}
    record = {"id": "2hop__1_2", "question": "Where?", "answer": "Oslo", "answerable": True}
    record |= {"answer_aliases": ["Christiania"], "paragraphs": [paragraph]}
    for name, lines in (("train", [record, {**record, "answerable": False}]), ("dev", [record])):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    files = (tmp_path / "train.jsonl", tmp_path / "dev.jsonl")
    said = prepare("--out", tmp_path / "data", "musique", *files)
    assert said.startswith("1 and 1 questions, 1 passages")
    monkeypatch.setenv("RAG_DATA_DIR", str(tmp_path / "data"))

    task = {"question": "Where?", "private": {"answers": ["Oslo", "Christiania"]}}
    assert [*scripts.wiki_tasks.load_tasks()] == [[task], [task]]
    assert scripts.wiki_tasks.load_passages() == ["Oslo. A city."]
    monkeypatch.setenv("RAG_DATA_DIR", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="RAG_DATA_DIR"):
        scripts.wiki_tasks.load_tasks()


def test_parquet_and_a_pickled_list_of_passages_are_converted(tmp_path: Path) -> None:
    rows = [{"question": f"Which {n}?", "answer": str(n)} for n in range(20)]
    write_parquet(tmp_path / "tiny.parquet", *rows)
    (tmp_path / "chunks.pkl").write_bytes(pickle.dumps(["One. 1", {"contents": "Two. 2"}]))
    said = prepare(
        *("--out", tmp_path / "data", "parquet", tmp_path / "tiny.parquet"),
        *("--passages", tmp_path / "chunks.pkl"),
    )
    assert said.startswith("18 and 2 questions, 2 passages")
    lines = (tmp_path / "data" / "passages.jsonl").read_text().splitlines()
    assert [json.loads(line)["contents"] for line in lines] == ["One. 1", "Two. 2"]


async def test_agent_looks_up_twice_and_all_calls_are_one_row(retriever) -> None:
    outcome = await play(scripts.rag_agent.rag_agent, TASK, scripts.scripted_llm.scripted_reply)
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 1)
    calls = model_calls(outcome.spans)
    assert [call.agent_name for call in calls] == ["rag_agent"] * 3
    assert [tool["function"]["name"] for tool in calls[0].tools or ()] == ["retrieve"]
    assert "Velby is the capital of Norland" in json.dumps(outcome.requests[2]["messages"])
    assert not [r for r in outcome.requests[:2] if "Norland" in json.dumps(r["messages"])]
    result = TraceToRows().adapt(outcome.spans)
    assert [len(row.call_ids) for row in result.rows] == [3]
    assert result.ledger.reasons() == {}


async def test_retriever_that_is_not_there_fails_the_attempt(monkeypatch) -> None:
    monkeypatch.setenv("WIKI_RETRIEVER_URL", "http://127.0.0.1:9/mcp")
    agent = scripts.rag_agent.rag_agent
    outcome = await play(agent, TASK, lambda request: "<answer>Norland</answer>")
    assert (outcome.rollout.status, outcome.reward) == ("failed", None)
    assert outcome.requests == []


def test_agent_runs_alone(retriever: str) -> None:
    check_alone(FOLDER / "rag_agent.py", scripts.scripted_llm.scripted_reply)


def test_dev_runs_every_task_from_the_command_line() -> None:
    done = run_script(SCRIPT, "--dev", "--scripted", "--tasks", 12)
    *lines, last = done.stdout.splitlines()
    assert last == "12 of 12 questions have a reward; 12 in all"
    learned = {line.split("learned: ")[1].strip() for line in lines}
    assert learned == {"2 calls  left out:", "3 calls  left out:"}


@pytest.mark.slow
def test_tiny_model_learns_what_to_look_up(tmp_path: Path) -> None:
    pytest.importorskip("verl")
    done = run_script(SCRIPT, "--tiny", "--steps", 24, "--out", tmp_path)
    assert done.stdout.count("reward on held-out questions after step") == 2
    summary = json.loads((tmp_path / "summary.json").read_text())
    rewards = summary["rewards"]
    assert fmean(rewards[-4:]) > fmean(rewards[:4]) + 0.25, rewards  # of 96 rollouts, not seeded
    assert summary["calls"] == summary["calls_trained"] + sum(summary["calls_excluded"].values())
