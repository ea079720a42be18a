"""Gradients over two processes: the same weights as one process, and an end with a reason."""

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
import torch

from agl.errors import AlgorithmError, ConfigError
from agl_torch.distillation import Distillation
from agl_torch.grpo import GRPO
from agl_torch.learner import Learner, Rule
from agl_torch.loss import clipped
from agl_torch.parallel import Replicas
from agl_torch.ppo import PPO

from .conftest import build_model
from .test_grpo import metrics, says_red
from .test_learner import OPTIONS, Sample, make_row

SAMPLED = dataclasses.replace(
    OPTIONS, learning_rate=1e-3, minibatch_rows=3, kl_coefficient=0.1, weight_decay=0.1
)


def samples(number=5):
    return [
        Sample(
            make_row(f"ro-{index}", 5 + index % 3),
            [1.0 - index % 2 * 2.0],
            returns=[float(index % 2)],
            values=[0.1],
        )
        for index in range(number)
    ]


def learner(algorithm, options):
    model = build_model()
    critic = algorithm.build_critic(model)
    return Learner(model, options, algorithm.rule(), seed=3, critic=critic)


@pytest.fixture
def replicas():
    """A learner and the processes that learn with it, ended with the test."""
    started = []

    def start(size, kind=GRPO):
        first = learner(kind(model="unused", clip_high=10.0), SAMPLED)
        started.append(Replicas(first, size))
        return first, started[-1]

    yield start
    for each in started:
        each.stop()


def test_several_processes_make_the_same_weights_as_one(replicas):
    alone = learner(PPO(model="unused", clip_high=10.0), SAMPLED)
    shared, others = replicas(3, PPO)
    for number in (5, 1):  # one row is fewer than processes
        expected = alone.update(samples(number))
        measured = others.update(samples(number), 1.0)
        assert measured == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for one, other in ((alone.model, shared.model), (alone.critic, shared.critic)):
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert any(one.abs().sum() for one in shared.critic.head.parameters())  # which began at 0


def gain_if_alike(tokens):
    """Of GRPO's kind, where operations are deterministic."""
    assert torch.are_deterministic_algorithms_enabled()
    return clipped(tokens.log_ratio_N, tokens.advantages_N)


def test_each_process_computes_alike_where_the_first_does():
    torch.use_deterministic_algorithms(True)
    try:
        first = Learner(build_model(), SAMPLED, Rule(gain_if_alike))
        others = Replicas(first, 2)
        try:
            others.update(samples(), 1.0)
        finally:
            others.stop()
    finally:
        torch.use_deterministic_algorithms(False)


def test_only_options_that_are_no_models_travel_to_another_process():
    for algorithm in (
        PPO(model="unused", critic=lambda: None, clip_high=0.5),
        Distillation(model="unused", teacher=lambda: None, clip_high=0.5),
    ):
        sent = pickle.loads(pickle.dumps(algorithm.rule())).gain.__self__
        assert sent.clip_high == 0.5
        assert not {"model", "tokenizer", "teacher", "critic"} & {*vars(sent)}


def test_a_learner_process_that_is_killed_fails_the_update_by_name(replicas):
    _, others = replicas(2)
    [(process, _)] = others._children
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(AlgorithmError, match=f"learner process.* {process.pid}"):
        others.update(samples(), 1.0)


def test_other_weights_in_one_process_are_noticed(replicas):
    shared, others = replicas(2)
    with torch.no_grad():
        next(iter(shared.model.parameters())).add_(0.5)
    with pytest.raises(AlgorithmError, match="other weights than the first one"):
        others.update(samples(), 1.0)


@pytest.mark.parametrize("module", [None, "__main__"])
def test_what_no_other_process_can_import_is_refused(module, monkeypatch):
    """``__main__`` of a script or a notebook is another module in another process."""
    rule = Rule((lambda tokens: None) if module is None else gain_in(module, monkeypatch))
    with pytest.raises(ConfigError, match=r"learner_processes=2.*another process can import"):
        Replicas(Learner(build_model(), OPTIONS, rule), 2)


def test_one_that_cannot_read_what_it_gets_is_not_waited_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "only_here", types.ModuleType("only_here"))
    rule = Rule(gain_in("only_here", monkeypatch))
    with pytest.raises(AlgorithmError, match=r"learner process \d+ ended"):
        Replicas(Learner(build_model(), OPTIONS, rule), 2)


def gain_in(module, monkeypatch):
    gain = type("Gain", (), {"__module__": module, "__call__": lambda self, tokens: None})
    monkeypatch.setattr(sys.modules[module], "Gain", gain, raising=False)
    return gain()


async def test_a_run_learns_with_two_processes_and_leaves_none_behind(line, grpo, tmp_path):
    algorithm = grpo(steps=6, epochs=2, learner_processes=2, lora_rank=4)
    await line(says_red, algorithm, ["one", "two"])
    rewards = [line["reward/mean"] for line in metrics(tmp_path)]
    assert max(rewards[-2:]) > min(rewards[:2])
    assert algorithm._replicas._children == []


PARENT = """
import os, pickle, signal, sys, types
from agl_torch.parallel import _start
process, connection = _start(sys.argv[1], 1, 2)  # nobody else comes to its meeting
connection.send_bytes(pickle.dumps(types.SimpleNamespace()))
print(process.pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_learner_process_ends_with_its_parent_while_it_waits_for_the_others(tmp_path):
    folder = tmp_path / "learners"
    folder.mkdir()
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        while not (folder / "meeting").exists():  # it is there, and waits
            time.sleep(0.05)
        parent.stdin.close()
    while is_running(child):
        time.sleep(0.05)
    assert not folder.exists()


def is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and ") Z " not in status.read_text()
