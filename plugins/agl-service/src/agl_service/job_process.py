"""The process of a job: a command of agl that ends with the training server."""

import sys
from typing import Any

import agl


@agl.rollout
def agent(task: Any, llm: agl.LLM) -> float:
    """Stands in a job's configuration for the agent, which runs at the client."""
    raise NotImplementedError("the agent of a job runs at the client")


if __name__ == "__main__":
    from agl.cli import main
    from agl_processes.tree import start_group
    from agl_sqlite.lockfile import LockFile

    start_group(int(sys.argv[1]))
    lock = LockFile(sys.argv[2])
    main(sys.argv[3:])
