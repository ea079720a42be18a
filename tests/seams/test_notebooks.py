"""Agents that are written in the cells of a real Jupyter kernel, where ``__main__`` has no file."""

from collections.abc import Callable, Generator

import pytest

jupyter = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

AGENTS = """
import asyncio, agl
class Graded(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        return 0.25 * task
    def grade(self, task, private, result):
        return 0.5
class Plain(agl.LitAgent):
    async def rollout_async(self, task, resources, rollout):
        return 0.25 * task
@agl.rollout
def function(task) -> float:
    return 0.25 * task
"""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str], str]]:
    """Runs a cell, and gives what stands under it."""
    folder = tmp_path_factory.mktemp("notebook")
    manager, client = jupyter.start_new_kernel(cwd=str(folder), startup_timeout=120)

    def run(code: str) -> str:
        said: list[str] = []

        def keep(message: dict[str, dict[str, str]]) -> None:
            content = message["content"]
            said.append(content.get("text", "") or content.get("evalue", ""))
            said.append(content.get("data", {}).get("text/plain", ""))  # type: ignore[attr-defined]

        client.execute_interactive(code, output_hook=keep, timeout=120)
        return "".join(said)

    assert run(AGENTS) == ""
    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("strategy", ["shm", "cs"])
@pytest.mark.parametrize(
    ("agent", "reward"), [("Plain()", 0.25), ("Graded()", 0.5), ("function", 0.25)]
)
def test_an_agent_of_a_notebook_runs(cell, agent, reward, strategy) -> None:
    trainer = f"agl.Trainer(n_runners=1, strategy={strategy!r})"
    said = cell(f"(await asyncio.to_thread({trainer}.dev, {agent}, [1])).mean_reward")
    assert said.splitlines()[-1] == str(reward), said


@pytest.mark.sqlite
def test_a_run_of_a_notebook_goes_on(cell: Callable[[str], str]) -> None:
    for more, tasks in (("", [1]), (", resume=True, force=True", [1, 1])):
        said = cell(
            f"trainer = agl.Trainer(n_runners=1, run='first'{more})\n"
            f"r = await asyncio.to_thread(trainer.dev, Plain(), {tasks})\n"
            "await trainer.store.close()\n"
            "r.status, len(r.record.generations)"
        )
    assert said.splitlines()[-1] == "('finished', 2)", said


def test_a_wall_says_that_it_needs_a_module(cell: Callable[[str], str]) -> None:
    said = cell(
        "from agl_sandbox.shipping import pack\n"
        "for one in (Plain(), function): pack(one, agl.OtelTracer())"
    )
    assert "written in a notebook" in said
    assert "%%writefile" in said
