"""``azure-sft`` over the real line and Azure's real SDKs, against a local Azure."""

import json

from .agents import CAPITALS, capitals

TASKS = list(CAPITALS)


def journal(algorithm, event):
    lines = (
        json.loads(text)
        for text in (algorithm.session_folder / "journal.jsonl").read_text().splitlines()
    )
    return [line for line in lines if line["event"] == event]


async def test_the_next_version_has_learned_from_the_best_answers(azure, sft, line):
    algorithm = await line(capitals, sft(iterations=2), TASKS, TASKS)
    assert algorithm.summary["rewards"][0] < 0.7
    assert algorithm.summary["rewards"][1] == 1.0
