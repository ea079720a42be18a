"""A run of three steps that tells its hooks all there is to tell, without a model."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agl
import agl_trackers
from agl.semconv import MODEL_CALL_SPAN, ModelCallAttributes as Key
from agl_learning.run import checkpoint

SHM = {"type": "shm", "main_thread": "algorithm"}
SECRET = "sk-0123456789abcdef"
PROMPTS = ["Be brief. {question}", "Say yes. {question}", "Be kind. {question}"]
TASKS = [{"question": "Is it?", "private": "the answer key"}, {"question": "Is it not?"}]


class Learner(agl.Algorithm):
    """Of three steps: each publishes a prompt, runs all tasks, and is evaluated."""

    def __init__(self, steps: int = 3, first: int = 1, api_key: str = SECRET) -> None:
        self.steps, self.first, self.api_key = steps, first, api_key

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        store, folder = self.get_store(), self.get_run_folder()
        for step in range(self.first, self.steps + 1):
            prompt = agl.PromptTemplate(template=PROMPTS[step % 3], engine="f-string")
            await self.publish_resources({"prompt": prompt}, f"prompt-{step}")
            queued = [
                await store.enqueue_rollout(task, mode="train", metadata={"step": step})
                for task in train_dataset
            ]
            ids = [one.rollout_id for one in queued]
            await store.wait_for_rollouts(rollout_ids=ids)
            metrics = {"step": step, "reward/mean": step / 4, "none": None, "name": "x"}
            await self.tell("on_step_end", step=step, metrics=metrics)
            held_out = {"val/reward/mean": step / 2}
            await self.tell("on_evaluation_end", step=step, metrics=held_out)
            if folder is not None:
                saved = folder / "checkpoints" / f"step-{step:06d}"
                with checkpoint.making(saved, {}) as writing:
                    (writing / "weights.txt").write_text(f"weights of step {step}")
                await self.tell("on_checkpoint_saved", step=step, path=saved)


class Fails(agl.Algorithm):
    """At once."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        raise ValueError("no luck")


@agl.rollout
def agent(task: dict[str, Any], prompt: agl.PromptTemplate) -> float:
    question = prompt.format(**task)
    if task["question"] == "Is it not?" and "kind" in question:
        raise LookupError("no kindness")
    asked = [{"role": "user", "content": question}]
    answer = [{"role": "assistant", "content": "yes"}]
    attributes = {
        Key.OPERATION: "chat",
        Key.REQUEST_MODEL: "tiny",
        Key.INPUT_MESSAGES: json.dumps(asked),
        Key.OUTPUT_MESSAGES: json.dumps(answer),
        Key.INPUT_TOKENS: 7,
        Key.OUTPUT_TOKENS: 2,
    }
    with agl.operation(name=MODEL_CALL_SPAN, **{key.value: v for key, v in attributes.items()}):
        pass
    return 0.75


@dataclass(kw_only=True, eq=False)
class Recorder(agl_trackers.Tracker):
    """Keeps what it is told; does first what it is asked to do."""

    told: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    does: Callable[[str], object] = str

    def _note(self, what: str, *rest: Any) -> None:
        self.does(what)
        self.told.append((what, *rest))

    def begin(self, about: agl_trackers.RunAbout) -> None:
        self._note("begin", about)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._note("metrics", step, dict(metrics))

    def log_rollouts(self, step: int, samples: Sequence[agl_trackers.Sample]) -> None:
        self._note("rollouts", step, list(samples))

    def log_prompt(self, step: int, prompt: agl_trackers.Prompt) -> None:
        self._note("prompt", step, prompt)

    def log_checkpoint(self, step: int, path: str, folder: Path | None) -> None:
        self._note("checkpoint", step, path, folder)

    def end(self, error: str | None) -> None:
        self._note("end", error)

    def all(self, what: str) -> list[Any]:
        return [tuple(rest) for first, *rest in self.told if first == what]


class Hang:
    """What has begun, and does not return until it may go on."""

    def __init__(self, only: str | None = None) -> None:
        self.began, self.goes_on, self._only = threading.Event(), threading.Event(), only

    def __call__(self, what: str | None = None) -> int:
        if self._only in (None, what):
            self.began.set()
            self.goes_on.wait()
        return 200

    def __enter__(self) -> "Hang":
        return self

    def __exit__(self, *error: object) -> None:
        self.goes_on.set()


def fit(hook: object, folder: Path, algorithm: agl.Algorithm | None = None, **more: Any) -> None:
    """A run with this hook, which gets all its time: the machine may be busy."""
    if isinstance(hook, agl_trackers.Tracker) and not isinstance(hook, Recorder):
        hook.wait_seconds = 120
    trainer = agl.Trainer(
        algorithm=algorithm or Learner(), strategy=SHM, run_dir=folder, hooks=hook, **more
    )
    try:
        trainer.fit(agent, TASKS)
    finally:
        asyncio.run(trainer.store.close())
