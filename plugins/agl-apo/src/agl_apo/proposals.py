"""New candidates: a critique of a prompt by a model, and an edit of it by another."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agl.errors import AlgorithmError, ConfigError
from agl_apo.evaluate import Candidate, NoScore, Score
from agl_apo.models import Models, bare, fill
from agl_apo.options import APOOptions
from agl_apo.session import SearchSession
from agl_apo.templates import placeholders


@dataclass
class Proposer:
    """Makes the candidates of a round."""

    options: APOOptions
    models: Models
    """Write critiques and edits."""
    templates: Mapping[str, Sequence[str]]
    """What they are asked, for ``critique`` and ``edit``; branches take turns."""
    session: SearchSession

    async def propose(
        self, number: int, beam: Sequence[Candidate], known: Sequence[Candidate]
    ) -> list[Candidate]:
        """Edited prompts that can be tried; why others cannot is recorded.

        Args:
            beam: What is edited.
            known: All candidates so far.

        Raises:
            AlgorithmError: No model call of the round brought anything.
        """
        branches = self.options.branch_factor
        places = [(parent, branch) for parent in range(len(beam)) for branch in range(branches)]
        answers = await asyncio.gather(
            *(self._edit(number, beam[parent], parent, branch) for parent, branch in places),
            return_exceptions=True,
        )
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in errors:
            if isinstance(error, ConfigError) or not isinstance(error, Exception):
                raise error
        if len(errors) == len(answers):
            raise AlgorithmError(
                f"APO: none of the {len(places)} critiques and edits of round {number} came back; "
                f"the first failed with {type(errors[0]).__name__}: {errors[0]}. Are the models "
                f"{self.options.gradient_model!r} and {self.options.apply_edit_model!r} there? "
                "Running again continues here"
            ) from errors[0]
        new: list[Candidate] = []
        for (parent, branch), answer in zip(places, answers, strict=True):
            name = _name(number, parent, branch)
            target = self._target(number, branch)
            why = f"no edit came back: {type(answer).__name__}: {answer}"
            text = None if isinstance(answer, BaseException) else answer
            candidate = await self.session.admit(
                name, beam[parent], {} if text is None else {target: text}, [*known, *new], why
            )
            if candidate is not None:
                new.append(candidate)
        return new

    def _target(self, number: int, branch: int) -> str:
        """Targets take turns, over branches and rounds."""
        turn = (number - 1) * self.options.branch_factor + branch
        targets = list(self.session.templates)
        return targets[turn % len(targets)]

    async def _edit(self, number: int, parent: Candidate, index: int, branch: int) -> str:
        options, session = self.options, self.session
        target, name = self._target(number, branch), _name(number, index, branch)
        template = session.templates[target]
        what = f"the prompt {target!r}"
        if isinstance(options.targets, Mapping):
            what = f"{options.targets[target]} ({target!r})"
        shared = {"what": what, "prompt": parent.texts[target]}

        async def criticise() -> dict[str, Any]:
            scores = self._sample(parent, f"{options.seed}/{name}")
            prompt = fill(
                self.templates["critique"][branch % len(self.templates["critique"])],
                **shared,
                reward_range=options.reward_range,
                experiments=[await experiment(session, score, target) for score in scores],
            )
            return await self.models.ask(options.gradient_model, prompt)

        critique = await session.ask("critique", name, criticise)

        async def edit() -> dict[str, Any]:
            prompt = fill(
                self.templates["edit"][branch % len(self.templates["edit"])],
                **shared,
                critique=critique,
                engine=template.engine,
                placeholders=[
                    f"{{{field}}}" if template.engine == "f-string" else f"{{{{ {field} }}}}"
                    for field in sorted(placeholders(template))
                ],
            )
            return await self.models.ask(options.apply_edit_model, prompt)

        return bare(await session.ask("edit", name, edit))

    def _sample(self, parent: Candidate, seed: str) -> list[Score | NoScore]:
        """Some of the parent's evaluations, half of them from its worst, failed ones first."""
        rng, evaluator = random.Random(seed), self.session.evaluator
        scores = [*evaluator.known(parent, "search"), *evaluator.failed(parent, "search")]
        rng.shuffle(scores)
        size = min(self.options.gradient_batch_size, len(scores))
        ranked = sorted(scores, key=lambda one: one.reward if isinstance(one, Score) else -1.0)
        worst = ranked[: (size + 1) // 2]
        rest = [score for score in scores if score not in worst]
        return [*worst, *rest[: size - len(worst)]]


async def experiment(session: SearchSession, score: Score | NoScore, target: str) -> dict[str, Any]:
    """What models are shown of an evaluation: ``task``, ``reward`` or ``failure``, ``messages``.

    Args:
        target: The prompt that is to be improved; if an agent is named for it, only that one's
            calls are shown.
    """
    low, high = session.options.reward_range
    task = session.evaluator.tasks["search"][score.task]
    return {
        "task": task if isinstance(task, str) else json.dumps(task, ensure_ascii=False),
        "reward": round(low + score.reward * (high - low), 3) if isinstance(score, Score) else None,
        "failure": score.why if isinstance(score, NoScore) else None,
        "messages": await _messages(session, score, (session.options.agents or {}).get(target)),
    }


async def _messages(
    session: SearchSession, score: Score | NoScore, agent: str | None
) -> list[dict[str, str]]:
    """The longest conversation that the agent had: later calls repeat the earlier ones."""
    spans = await session.journal.store.query_spans(score.rollout_id, "latest")
    try:
        adapted: Any = session.adapter.adapt(list(spans))
    except Exception as error:  # anybody may write spans
        return [{"role": "note", "content": f"The conversation cannot be read: {error}"}]
    if not isinstance(adapted, list):
        raise ConfigError(
            f"{session.options.title} reads chat messages; the adapter "
            f"{type(session.adapter).__name__} gave {type(adapted).__name__}. Use the adapter "
            "'messages', or leave the adapter out"
        )
    calls: list[Any] = [
        call
        for call in adapted
        if agent is None or call.get("metadata", {}).get("agent_name") == agent
    ]
    last: list[Any] = max((call["messages"] for call in calls), key=len, default=[])
    return [{"role": str(m["role"]), "content": _content(m)} for m in last]


def _name(number: int, parent: int, branch: int) -> str:
    """The same place of the search has the same id, whatever became of the others."""
    return f"r{number}.{parent + 1}.{branch + 1}"


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls = "".join(f"\n{one.get('name')}({one.get('arguments')})" for one in functions)
    return (text + calls).strip()
