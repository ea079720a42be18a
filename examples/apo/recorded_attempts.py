"""Propose prompts from recorded attempts alone: ``python recorded_attempts.py messages.jsonl``.

For attempts whose agent cannot be run here: what ``agl export STORE --as messages`` writes, or JSON
lines with ``messages`` (the prompt is the system message) and ``reward``. A model sees the worst
and the best attempts of the best prompt, and edits it. Nobody ran the edits, so nothing says that
they are better: run APO with the agent, and an edit as its first prompt, before you rely on it.

The model is reached at ``OPENAI_BASE_URL`` with ``OPENAI_API_KEY``.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from openai import OpenAI

CRITIQUE = (
    "An agent was told:\n\n{prompt}\n\nThese attempts got the rewards that stand over them. Say in "
    "one paragraph what in the prompt makes the bad ones bad.\n\n{attempts}"
)
EDIT = (
    "Rewrite this prompt so that the critique no longer holds. Keep every placeholder, name no "
    "task, and answer with the prompt alone.\n\nPrompt:\n{prompt}\n\nCritique:\n{critique}"
)


def read(path: str) -> dict[str, list[dict[str, Any]]]:
    """The attempts of each prompt; those without a reward are left out, and counted."""
    by_prompt: dict[str, list[dict[str, Any]]] = defaultdict(list)
    left_out = 0
    with open(path, encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            prompts = [one["content"] for one in line["messages"] if one["role"] == "system"]
            if line.get("reward") is None or not prompts:
                left_out += 1
            else:
                by_prompt[prompts[0]].append(line)
    if left_out:
        print(f"left out: {left_out} lines without a reward or a system message")
    return by_prompt


def shown(attempts: list[dict[str, Any]]) -> str:
    """Attempts as text."""
    said = [
        "\n".join(f"{one['role']}: {one['content']}" for one in line["messages"][1:])
        for line in attempts
    ]
    return "\n\n".join(
        f"reward {line['reward']}\n{text}" for line, text in zip(attempts, said, strict=True)
    )


def main() -> None:
    """Print the recorded prompts with their rewards, and the edits of the best one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--model", default="gpt-5-mini")
    parser.add_argument("--edits", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a file for the first of the proposals")
    options = parser.parse_args()
    by_prompt = read(options.file)
    if not by_prompt:
        raise SystemExit(
            f"{options.file}: no attempt has a reward and a system message, which is the prompt; "
            "record the prompt as the message of role 'system'"
        )
    means = {
        prompt: statistics.fmean(one["reward"] for one in attempts)
        for prompt, attempts in by_prompt.items()
    }
    for prompt, mean in sorted(means.items(), key=lambda item: -item[1]):
        print(f"{mean:.3f} over {len(by_prompt[prompt])} attempts: {prompt!r}")
    best = max(means, key=lambda prompt: means[prompt])
    ranked = sorted(by_prompt[best], key=lambda one: one["reward"])
    client = OpenAI()

    def ask(text: str) -> str:
        said: Any = [{"role": "user", "content": text}]
        answer = client.chat.completions.create(model=options.model, messages=said)
        return (answer.choices[0].message.content or "").strip()

    for number in range(options.edits):
        sample = [*ranked[number : number + 4], *ranked[-2:]]
        critique = ask(CRITIQUE.format(prompt=best, attempts=shown(sample)))
        proposal = ask(EDIT.format(prompt=best, critique=critique))
        print(f"\nproposed, never run:\n{proposal}")
        if options.output and number == 0:
            options.output.write_text(proposal, encoding="utf-8")


if __name__ == "__main__":
    main()
