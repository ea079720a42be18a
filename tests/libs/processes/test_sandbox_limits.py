import errno
import os
from types import SimpleNamespace

import pytest

from agl.errors import ConfigError
from agl.runner.report import SandboxedAgentError
from agl.types import Rollout
from agl_processes.sandbox_limits import SandboxLimits


def of(run):
    metadata = {"run": run}
    return Rollout(rollout_id="ro-1", input=1, start_time=0, status="running", metadata=metadata)


RUN = of("run")


@pytest.fixture
def waits(tmp_path, monkeypatch):
    """What was waited for; neither that nor ``work`` takes time."""
    found, running, now = [], [], 0.0

    async def sleep(seconds):
        nonlocal now
        found.append(round(seconds))
        now += seconds
        if running:
            await running.pop().__aexit__(None, None, None)

    async def work(limits, rollout=RUN, seconds=0.0):
        nonlocal now
        async with limits.sandbox(rollout):
            now += seconds

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    clock = SimpleNamespace(time=lambda: 1e9 + now, monotonic=lambda: now)
    monkeypatch.setattr("agl_processes.sandbox_limits.time", clock)
    monkeypatch.setattr("agl_processes.sandbox_limits.asyncio.sleep", sleep)
    monkeypatch.setattr("agl_processes.sandbox_limits.emit_annotation", lambda _: None)
    return SimpleNamespace(found=found, work=work, running=running)


async def test_limits_hold_over_all_that_share_a_run(waits):
    runners = [SandboxLimits(6, price_per_hour=3600, budget=5) for _ in range(3)]
    await waits.work(runners[0], seconds=2.5)
    await waits.work(runners[1], seconds=2.5)
    with pytest.raises(
        SandboxedAgentError, match=r"have cost 5.00, and their budget is 5.00"
    ) as spent:
        await waits.work(runners[2])
    assert (spent.value.failure.boundary, waits.found) == ("resources", [8])
    await waits.work(runners[2], of("another run"))


async def test_a_full_disk_costs_a_rollout_that_is_done_no_reward(waits, monkeypatch, caplog):
    limits, said = SandboxLimits(price_per_hour=3600), []

    def full(path, *given, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("agl_processes.sandbox_limits.emit_annotation", said.append)
    async with limits.sandbox(RUN):
        monkeypatch.setattr("pathlib.Path.write_text", full)
    assert said[0]["sandbox.cost"] == 0.0
    assert "is not counted" in caplog.text


async def test_budget_that_is_spent_while_one_waits_makes_no_more(waits):
    limits = SandboxLimits(1, price_per_hour=3600, budget=5)
    waits.running.append(limits.sandbox(RUN))
    await waits.running[0].__aenter__()
    with pytest.raises(SandboxedAgentError):
        await waits.work(limits)
    assert waits.found == [60]


async def test_budget_without_a_price_and_an_open_folder_are_refused(waits, tmp_path):
    with pytest.raises(ConfigError, match="price_per_hour is 0, so nothing would be counted"):
        SandboxLimits(budget=5)
    (tmp_path / f"agl-sandboxes-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"agl-sandboxes-{os.getuid()}").chmod(0o777)
    with pytest.raises(ConfigError, match="is open to others"):
        await waits.work(SandboxLimits())
