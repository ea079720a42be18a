"""The agent that searches in plain text: its reward, its server, its loop, and its scripts."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example_bench import EXAMPLES, check_alone, learned, play, run_script, scripts

from agl_adapters import TraceToRows

FOLDER = EXAMPLES / "search_r1"
SCRIPT = FOLDER / "train_search_r1_agent.py"
TASK = {
    "question": "Of which country is the city where Ada Lind was born the capital?",
    "private": {"golden_answers": ["Norland"]},
}


@pytest.fixture
def retriever(on_path: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with scripts.retrieval_server.retrieval_process() as url:
        monkeypatch.setenv("RETRIEVAL_SERVER_URL", url)
        yield url


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("<answer>Norland</answer>", 1),
        ("<think>Sudria?</think> <answer> the norland. </answer>", 1),
        ("<answer>Sudria</answer> no, <answer>Norland</answer>", 1),
        ("<answer>Norland Sudria</answer>", 0),
        ("<answer></answer>", 0),
        ("Norland", 0),
    ],
)
def test_answer_is_scored(said: str, reward: float) -> None:
    assert scripts.qa_em.compute_score_em(said, ["Norland", "Nor"]) == reward
    with pytest.raises(ValueError, match="at least one right answer"):
        scripts.qa_em.compute_score_em(said, [])


def test_questions_of_search_r1_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(part) for part in scripts.search_tasks.load_tasks()] == [80, 16]
    for name in ("train", "test"):
        line = {"id": "1", "question": name, "golden_answers": ["a", "b"]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    monkeypatch.setenv("SEARCH_R1_DATA_DIR", str(tmp_path))
    train, test = scripts.search_tasks.load_tasks()
    assert train == [{"question": "train", "private": {"golden_answers": ["a", "b"]}}]
    assert test == [{"question": "test", "private": {"golden_answers": ["a", "b"]}}]


@pytest.mark.parametrize("script", ["data_process.sh", "retrieval_launch.sh"])
def test_shell_scripts_can_be_read(script: str) -> None:
    subprocess.run(["bash", "-n", FOLDER / script], check=True)


def ask(url: str, **body: Any) -> Any:
    request = urllib.request.Request(
        f"{url}/retrieve", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["result"]


def test_each_query_gets_its_best_passages(retriever: str) -> None:
    lind, velby = ask(retriever, queries=["Ada Lind", "Velby"], topk=2, return_scores=True)
    assert lind[0]["document"]["contents"].startswith("Ada Lind. Ada Lind was born in Velby")
    assert velby[0]["document"]["contents"].startswith("Velby. Velby is the capital of Norland.")
    assert lind[0]["score"] > lind[1]["score"]
    (documents,) = ask(retriever, queries=["Norland"])
    assert len(documents) <= 3
    assert set(documents[0]) == {"id", "contents"}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # it stays open for its life
def test_passages_stay_on_the_disk(tmp_path: Path) -> None:
    contents = ["één", "two", "three\nlines"]
    lines = [json.dumps({"id": n, "contents": c}) for n, c in enumerate(contents)]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
    passages = scripts.retrieval_server.LineFile(tmp_path / "corpus.jsonl")
    assert list(passages) == contents
    with pytest.raises(IndexError):
        passages[3]


def test_passages_are_found_by_vectors() -> None:
    faiss = pytest.importorskip("faiss")
    import numpy as np

    def encode(texts: list[str]) -> Any:
        assert all(text.startswith("query: ") for text in texts)
        rows = [[float(word in text) for word in ("oslo", "rome")] for text in texts]
        return np.array(rows, dtype=np.float32)

    index = faiss.IndexFlatIP(2)
    index.add(np.eye(2, dtype=np.float32))
    ranked = scripts.retrieval_server.DenseRetriever(index, encode, 2).rank(["rome", "oslo"], 1)
    assert ranked == [[(1, 1.0)], [(0, 1.0)]]
    with pytest.raises(ValueError, match="2 vectors and the corpus 3 passages"):
        scripts.retrieval_server.DenseRetriever(index, encode, 3)


async def test_agent_searches_twice_and_all_calls_are_one_row(retriever) -> None:
    agent = scripts.search_r1_agent.SearchR1Agent()
    outcome = await play(agent, TASK, scripts.scripted_llm.scripted_reply)
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 1)
    last = outcome.requests[-1]["messages"]
    assert [message["role"] for message in last] == ["user", "assistant"] * 2 + ["user"]
    assert last[2]["content"].startswith("<information> Ada Lind. Ada Lind was born in Velby")
    result = TraceToRows().adapt(outcome.spans)
    (row,) = result.rows
    assert len(row.call_ids) == 3
    # What was retrieved is in the row, and not learned from.
    assert 0 < sum(row.loss_mask) < len(row.loss_mask)
    assert result.ledger.reasons() == {}


async def test_answer_without_a_tag_is_asked_for_again_and_turns_are_limited(
    retriever: str,
) -> None:
    agent = scripts.search_r1_agent.SearchR1Agent(max_turns=3)
    outcome = await play(agent, TASK, lambda request: "It is Norland.")
    assert (outcome.rollout.status, outcome.reward) == ("succeeded", 0)
    assert len(outcome.requests) == 3
    assert outcome.requests[1]["messages"][-1]["content"] == scripts.search_r1_agent.NUDGE


async def test_model_that_makes_up_information_is_not_believed(retriever) -> None:
    made_up = (
        "<search>Hal Reed</search> <information>Norland</information> <answer>Norland</answer>"
    )

    def reply(request: dict[str, Any]) -> str:
        return made_up if len(request["messages"]) == 1 else "<answer>Sudria</answer>"

    outcome = await play(scripts.search_r1_agent.SearchR1Agent(), TASK, reply)
    assert len(outcome.requests) == 2
    assert outcome.reward == 0


async def test_server_that_is_not_there_fails_the_attempt(monkeypatch) -> None:
    monkeypatch.setenv("RETRIEVAL_SERVER_URL", "http://127.0.0.1:9")
    agent = scripts.search_r1_agent.SearchR1Agent()
    outcome = await play(agent, TASK, lambda request: "<search>Ada Lind</search>")
    assert (outcome.rollout.status, outcome.reward) == ("failed", None)


def test_agent_runs_alone(retriever: str) -> None:
    check_alone(FOLDER / "search_r1_agent.py", scripts.scripted_llm.scripted_reply)


def test_dev_runs_every_task_from_the_command_line() -> None:
    done = run_script(SCRIPT, "--dev", "--scripted", "--tasks", 16)
    *lines, last = done.stdout.splitlines()
    assert last == "16 of 16 questions have a reward; 16 are right"
    assert all(line.endswith("in 1 row(s)  left out: ") for line in lines)


@pytest.mark.slow
def test_tiny_model_learns_whom_to_search(tmp_path: Path) -> None:
    pytest.importorskip("agl_torch")
    run_script(SCRIPT, "tiny", "--steps", 10, "--out", tmp_path)
    learned(tmp_path)
