"""What the guides of 0.3 show with several processes; see ``tests/core/test_guides.py``."""

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AGENT = """
import asyncio, multiprocessing, os, sys
import agl

QUESTIONS = ["Why is the sea salty?", "What is the capital of France?"]
PROMPT = agl.PromptTemplate(template="Be brief. {question}", engine="f-string")

@agl.rollout
def explainer(task: str, prompt_template: agl.PromptTemplate) -> float:
    agl.emit_message(f"{os.getpid()}: {prompt_template.format(question=task)}")
    return 0.95
"""

TRAIN = """
class Recording(agl.Baseline):
    async def run(self, train_dataset=None, val_dataset=None):
        await super().run(train_dataset, val_dataset)
        for rollout_id, reward in self.rewards.items():
            spans = await self.get_store().query_spans(rollout_id)
            pid = agl.get_message_value(spans[0]).split(":")[0]
            print("RESULT", reward, int(pid) == os.getpid(), flush=True)
"""


def write(folder: Path, body: str) -> Path:
    script = folder / "train.py"
    script.write_text(AGENT + textwrap.dedent(TRAIN) + textwrap.dedent(body))
    return script


def environment(**variables: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("AGL_")}
    return {**kept, "PYTHONWARNINGS": "error", **variables}


def run(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=250,
    )


def results(done: subprocess.CompletedProcess[str]) -> list[list[str]]:
    assert done.returncode == 0, done.stderr
    return [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT")]


@contextmanager
def process(*command: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs on its own until the block ends it, as the user's Ctrl+C would."""
    started = subprocess.Popen(
        [str(part) for part in command],
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGINT)
        try:
            started.communicate(timeout=250)
        except subprocess.TimeoutExpired:
            started.kill()
            raise


@pytest.fixture
def store_url() -> Iterator[str]:
    """``agl store`` in a process of its own."""
    command = [sys.executable, "-c", "from agl.cli import main; main()"]
    with process(*command, "store", "--port", 0, "--backend", "memory") as server:
        assert server.stdout is not None
        for line in server.stdout:
            if found := re.search(r"http://\S+:\d+", line):
                yield found.group()
                return
        raise AssertionError("agl store ended")


def test_roles_meet_in_a_store_that_the_trainer_does_not_manage(
    tmp_path: Path, store_url: str
) -> None:
    script = write(
        tmp_path,
        f"""
        client = agl.LightningStoreClient("{store_url}")
        trainer = agl.Trainer(
            algorithm=Recording(), store=client, initial_resources={{"main_prompt": PROMPT}}
        )
        trainer.fit(explainer, QUESTIONS)
        """,
    )
    with process(sys.executable, script, AGL_MANAGED_STORE="0", AGL_CURRENT_ROLE="runner"):
        done = run(script, AGL_MANAGED_STORE="0", AGL_CURRENT_ROLE="algorithm")
    assert results(done) == [["0.95", "False"]] * 2


def test_runners_are_spawned_by_hand_and_iterate_over_a_client_store(
    tmp_path: Path, store_url: str
) -> None:
    runners = write(
        tmp_path,
        f"""
        def run_rollout(store: agl.LightningStore, worker_id: int) -> None:
            runner = agl.LitAgentRunner(tracer=agl.OtelTracer())
            with runner.run_context(agent=explainer, store=store, worker_id=worker_id):
                asyncio.run(runner.iter())

        if __name__ == "__main__":
            store = agl.LightningStoreClient("{store_url}")
            processes = [
                multiprocessing.Process(target=run_rollout, args=(store, worker_id), daemon=True)
                for worker_id in range(2)
            ]
            for each in processes:
                each.start()
            for each in processes:
                each.join()
        """,
    )
    (tmp_path / "algorithm").mkdir()
    algorithm = write(
        tmp_path / "algorithm",
        f"""
        async def main() -> None:
            store = agl.LightningStoreClient("{store_url}")
            update = await store.add_resources({{"main_prompt": PROMPT}})
            while len(await store.query_workers()) < 2:
                await asyncio.sleep(0.05)
            rollouts = [
                await store.enqueue_rollout(
                    input=task, mode="train", resources_id=update.resources_id
                )
                for task in QUESTIONS * 3
            ]
            ids = [rollout.rollout_id for rollout in rollouts]
            while len(done := await store.wait_for_rollouts(rollout_ids=ids, timeout=0.0)) < 6:
                await asyncio.sleep(0.05)
            for rollout in done:
                spans = await store.query_spans(rollout.rollout_id, "latest")
                print("RESULT", rollout.status, agl.find_final_reward(spans))
            await store.close()

        asyncio.run(main())
        """,
    )
    with process(sys.executable, runners):
        done = run(algorithm)
    assert results(done) == [["succeeded", "0.95"]] * 6


def test_dev_uses_processes_unless_told_otherwise(tmp_path: Path) -> None:
    script = write(
        tmp_path,
        """
        trainer = agl.Trainer(n_runners=1, initial_resources={"main_prompt": PROMPT})
        trainer.algorithm = Recording()
        trainer.dev(explainer, QUESTIONS)
        """,
    )
    assert results(run(script, AGL_SERVER_PORT="0")) == [["0.95", "False"]] * 2


def test_trainer_without_anything_says_that_it_learns_nothing_and_what_the_agent_lacks(
    tmp_path: Path,
) -> None:
    script = write(
        tmp_path,
        """
        agl.Trainer().fit(agent=explainer, train_dataset=QUESTIONS)
        """,
    )
    done = run(script, AGL_SERVER_PORT="0")
    assert done.returncode != 0
    log = " ".join(done.stderr.split())
    assert "no algorithm was given, so nothing is learned" in log
    # Nobody publishes a prompt, and the agent wants one: nothing is started.
    assert "MissingResourceError: agent 'explainer': no resource for parameter" in log
    assert "Finished" not in log


def test_algorithm_bound_to_every_interface_serves_runners_that_have_the_token(
    tmp_path: Path,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = write(
        tmp_path,
        """
        trainer = agl.Trainer(
            algorithm=Recording(),
            n_runners=2,
            initial_resources={"main_prompt": PROMPT},
            strategy={"type": "cs", "graceful_timeout": 1.0, "terminate_timeout": 1.0},
        )
        trainer.fit(explainer, QUESTIONS)
        """,
    )
    here = {"AGL_SERVER_PORT": port, "AGL_CURRENT_ROLE": "algorithm", "AGL_SERVER_HOST": "0.0.0.0"}
    there = {**here, "AGL_CURRENT_ROLE": "runner", "AGL_SERVER_HOST": "127.0.0.1"}
    refused = run(script, **here)
    assert refused.returncode == 1
    assert "AGL_SERVER_TOKEN" in refused.stderr.splitlines()[-1]
    with process(sys.executable, script, AGL_SERVER_TOKEN="a long random text", **there):
        done = run(script, AGL_SERVER_TOKEN="a long random text", **here)
    assert results(done) == [["0.95", "False"]] * 2
