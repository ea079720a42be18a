"""Harbor's environments over fakes of the clouds' SDKs that keep documented limits, but run faster.

Read on 2026-11-30. E2B Hobby (e2b.dev/docs/sandbox/rate-limits): 1 creation a second, 20 sandboxes
at once. Daytona's tier 1 (daytona.io/docs/en/limits): 300 creations a minute, 10 vCPUs. Modal's
Starter (modal.com/pricing): 100 containers, no rate. No page names how long a start takes: 2
seconds here. Lifetimes (1 hour; none; 5 minutes to 24 hours) stand for a sandbox that is gone.
"""

import asyncio
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import pytest

import agl
from agl_runs.environments import load_environment

e2b, daytona = pytest.importorskip("e2b"), pytest.importorskip("daytona")
modal = pytest.importorskip("modal.exception")
CLOUDS = {  # creations, in so many seconds, at once, the error beyond that, for what is gone
    "e2b": (1, 1, 20, e2b.RateLimitException, e2b.SandboxNotFoundException),
    "daytona": (300, 60, 10, daytona.DaytonaRateLimitError, daytona.DaytonaNotFoundError),
    "modal": (10**6, 1, 100, modal.ResourceExhaustedError, modal.SandboxTerminatedError),
}
sleep = asyncio.sleep


class Account:
    def __init__(self, name):
        self.rate, self.window, self.at_once, self.refusal, self.lost = CLOUDS[name]
        self.name, self.made, self.ended, self.refused, self.most = name, [], [], 0, 0
        self.fast, self.loses = 40, "nothing"

    def time(self):
        return time.monotonic() * self.fast

    async def create(self, *_, **__):
        now = self.time()
        is_fast = sum(made > now - self.window for made in self.made) >= self.rate
        if is_fast or len(self.made) - len(self.ended) >= self.at_once:
            self.refused += 1
            what = "Rate limit exceeded" if is_fast else "maximum number of concurrent sandboxes"
            raise self.refusal(f"429: {what}")
        self.made.append(now)
        self.most = max(self.most, len(self.made) - len(self.ended))
        box, end = AsyncMock(), AsyncMock(side_effect=lambda: self.ended.append(now))
        box.kill, box.delete, box.terminate.aio, box.files.read.return_value = end, end, end, ""
        await asyncio.sleep(2)
        return box

    async def exec(self, _, command, **__):
        await asyncio.sleep(3)
        if self.loses in command:
            self.loses = ""  # from now on
            raise self.lost("the sandbox was not found: its time is over")
        return SimpleNamespace(return_code=0, stdout="", stderr="")

    async def download(self, sandbox, source_dir, target_dir):
        await self.exec(sandbox, "download")
        (target_dir / "reward.txt").write_text("1")


@pytest.fixture(params=CLOUDS)
def cloud(request, monkeypatch, tmp_path):
    from harbor.environments import e2b as on_e2b, modal as on_modal
    from harbor.environments.daytona import environment as on_daytona

    account = Account(request.param)
    sdk = MagicMock(create=account.create)
    sdk.list.return_value.__aiter__.return_value = []
    aio = MagicMock(create=MagicMock(aio=account.create), lookup=MagicMock(aio=AsyncMock()))
    for where, name, fake in (
        (on_e2b, "AsyncSandbox", sdk),
        (on_daytona.DaytonaClientManager, "get_client", AsyncMock(return_value=sdk)),
        *((on_modal, "Sandbox", aio), (on_modal, "App", aio)),
        (asyncio, "sleep", lambda seconds, *a: sleep(seconds / account.fast, *a)),
    ):
        monkeypatch.setattr(where, name, fake)
    for one in (on_e2b.E2BEnvironment, on_daytona.DaytonaEnvironment, on_modal.ModalEnvironment):
        for name in ("exec", "download_dir", "upload_dir", "upload_file", "download_file"):
            does = {"exec": account.exec, "download_dir": account.download}.get(name, AsyncMock())
            monkeypatch.setattr(one, name, lambda *a, does=does, **k: does(*a, **k))
    clock = SimpleNamespace(time=account.time, monotonic=account.time)
    monkeypatch.setattr("agl_processes.sandbox_limits.time", clock)
    monkeypatch.setattr("agl_processes.sandbox_limits.FINISH_SECONDS", 1)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for key in ("E2B_API_KEY", "DAYTONA_API_KEY", "MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"):
        monkeypatch.setenv(key, "x")
    task = {"task.toml": "[environment]\ncpus = 1\n", "environment/Dockerfile": "FROM scratch\n"}
    for name in ("instruction.md", "tests/test.sh", "solution/solve.sh", *task):
        (path := tmp_path / "tasks" / "one" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_text(task.get(name, "true"))
    place = {"type": request.param}
    if request.param == "e2b":  # so that nothing is built
        place["prebuilt_template_id"] = "x"
    spec = {"type": "harbor", "agent": "nop", "tasks": str(tmp_path / "tasks"), "sandbox": place}
    account.load = lambda **options: load_environment({**spec, **options})
    yield account
    assert sorted(account.ended) == account.made, "a sandbox was left"


def run(cloud, num_tasks, concurrency, **options):
    """What failed so many rollouts, each None or an error."""
    made, queue = cloud.load(**options), {"type": "baseline", "max_queue_length": 99}
    trainer = agl.Trainer(algorithm=queue, strategy="shm", concurrency=concurrency)
    trainer.fit(made.agent, [*made.train] * num_tasks)
    rollouts = asyncio.run(trainer.store.query_rollouts()).items
    asyncio.run(trainer.store.close())
    return [one.attempt.error for one in rollouts]


def test_limits_of_a_run_keep_below_those_of_a_cloud(cloud):
    cloud.fast = 10
    assert run(cloud, 8, 4, starts_per_minute=30) == [None] * 8
    assert (cloud.refused, len(cloud.made), cloud.most <= 4) == (0, 8, True)


def test_sandbox_that_is_refused_is_waited_for_or_fails_as_infrastructure(cloud):
    failed = {error.boundary for error in run(cloud, 24, 24) if error}
    # Harbor asks E2B once more, and Daytona for as long as a start may take; Modal allows 24.
    is_refused = {"e2b": (True, {"resources"}), "daytona": (True, set())}
    assert (cloud.refused > 0, failed) == is_refused.get(cloud.name, (False, set()))
    assert cloud.most <= cloud.at_once


def test_sandbox_that_is_gone_is_no_failure_of_the_agent(cloud):
    cloud.loses = "solve.sh"
    [error] = run(cloud, 1, 1, agent="oracle")
    assert (error.boundary, error.type) == ("resources", f"harbor.{cloud.lost.__name__}")


async def test_sandbox_whose_rollout_is_cancelled_as_it_is_made_is_deleted(cloud):
    made = await asyncio.to_thread(cloud.load)
    rollout = await agl.InMemoryLightningStore().start_rollout(made.train[0])
    running = asyncio.create_task(made.agent.rollout_async(rollout.input, {}, rollout))
    while not cloud.made:  # noqa: ASYNC110 (nobody tells)
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert len(cloud.ended) == 1
