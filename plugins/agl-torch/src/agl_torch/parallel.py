"""Gradients over several processes: each has a whole copy of the weights and takes a share of rows.

Every process makes the same update from the same samples, with the same random states (data
parallelism with one replica per process, as PyTorch's DDP). Of a gradient step it computes the
gradients of its share of the rows; the sums over all processes (gloo's all-reduce) are then the
same numbers everywhere, and so are the steps. After each update the weights are compared.

The other processes are children of this one: they end when it ends, and when one of them does, the
update fails.
"""

import math
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch

from agl.errors import AlgorithmError, ConfigError
from agl_torch.shares import Share

if TYPE_CHECKING:
    from agl_torch.learner import Learner, Sample

POLL_SECONDS = 0.5
"""Between two looks at whether the first process still lives."""


class Replicas:
    """The other processes, seen from the first.

    Args:
        learner: What each of them gets a copy of, as it is now.
        size: Processes, this one included.

    Raises:
        ConfigError: The model or the algorithm cannot be sent to another process.
    """

    def __init__(self, learner: "Learner", size: int) -> None:
        try:
            packed = pickle.dumps(learner)
            if b"__main__" in packed:
                raise pickle.PicklingError("a part of it is defined in a script or a notebook")
        except Exception as error:
            raise ConfigError(
                f"learner_processes={size}: the model and the algorithm's class must be ones that "
                f"another process can import ({type(error).__name__}: {error}). Put them into a "
                "module, or use one process"
            ) from error
        self._learner = learner
        self._folder = tempfile.TemporaryDirectory(prefix="agl-learners-")
        self._children: list[tuple[subprocess.Popen[bytes], Connection]] = []
        try:
            for rank in range(1, size):
                self._children.append(_start(self._folder.name, rank, size))
            for _, connection in self._children:
                connection.send_bytes(packed)
            self._answers()  # that they have read it; one that has not does not come to the meeting
            learner.share = Share(self._folder.name, 0, size)
            self._answers()
        except BaseException:
            self.stop()
            raise

    def update(self, samples: "Sequence[Sample]", factor: float) -> dict[str, float]:
        """What ``Learner.update`` does, by all processes.

        Raises:
            AlgorithmError: One of them failed, or has other weights than the others.
        """
        packed = pickle.dumps((list(samples), factor))
        try:
            for _, connection in self._children:
                connection.send_bytes(packed)
            learned = self._learner.update(samples, factor)
        except (RuntimeError, OSError) as error:
            ended = [f"{p.pid} (exit code {p.poll()})" for p, _ in self._children if _ends(p)]
            if not ended:
                raise
            raise AlgorithmError(
                f"the learner process {', '.join(ended)} ended during an update; what it wrote "
                "stands above. The weights of this update are lost; go on with `agl run --resume`"
            ) from error
        mine = checksum(self._learner)
        for number, theirs in enumerate(self._answers(), start=1):
            if not math.isclose(mine, theirs, rel_tol=1e-9):
                raise AlgorithmError(
                    f"learner process {number} has other weights than the first one after the same "
                    f"update (checksums {theirs!r} and {mine!r}). Are their devices and versions "
                    "of torch the same?"
                )
        return learned

    def stop(self) -> None:
        """End them; safe to call again."""
        for process, connection in self._children:
            connection.close()  # it reads the end of its orders, and ends
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._children = []
        self._folder.cleanup()

    def _answers(self) -> list[float]:
        answers: list[float] = []
        for process, connection in self._children:
            try:
                answers.append(connection.recv())
            except (EOFError, OSError) as error:
                raise AlgorithmError(
                    f"the learner process {process.pid} ended; what it wrote stands above"
                ) from error
        return answers


def checksum(learner: "Learner") -> float:
    """A number that differs where weights differ: the sum of their magnitudes."""
    parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
    return float(sum(one.detach().double().abs().sum() for one in parameters))


def _start(folder: str, rank: int, size: int) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket.socketpair()
    is_alike = torch.are_deterministic_algorithms_enabled()
    arguments = (theirs.fileno(), folder, rank, size, os.getpid(), int(is_alike))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, arguments)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # Its threads are as many as ours, for ``deterministic`` too; it imports what we can.
            env={
                **os.environ,
                "OMP_NUM_THREADS": str(torch.get_num_threads()),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            start_new_session=True,  # Ctrl+C is for the first process, which then ends the others
        )
    return process, Connection(ours.detach())


def _ends(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_with(parent: int, folder: str) -> None:
    """End when that process has, wherever this one waits: gloo would wait for it for long."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Take part in updates until the first process closes the connection, or ends."""
    descriptor, folder, rank, size, parent, is_alike = arguments
    threading.Thread(target=_end_with, args=(int(parent), folder), daemon=True).start()
    torch.use_deterministic_algorithms(is_alike == "1")
    connection = Connection(int(descriptor))
    learner: Any = pickle.loads(connection.recv_bytes())
    connection.send(0.0)
    learner.share = Share(folder, int(rank), int(size))
    connection.send(checksum(learner))
    while True:
        try:
            samples, factor = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        learner.update(samples, factor)
        connection.send(checksum(learner))


if __name__ == "__main__":
    main(sys.argv[1:])
