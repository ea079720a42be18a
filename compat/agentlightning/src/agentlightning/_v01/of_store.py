"""Agents of 0.1 on a server that is a store: ``python -m agentlightning.verl``, or any of agl's."""

import logging
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from agentlightning._v01.tasks import TaskAgent
from agl import ClientServerExecutionStrategy, LitAgent, Tracer, Trainer
from agl.env import DEFAULT_PORT
from agl.types import ProxyLLM
from agl.utils.secrets import learn
from agl_http.tokens import without_token

logger = logging.getLogger("agl.compat")

RETRY_SECONDS = 1.0


class AgentOfAttempts(TaskAgent):
    """An agent of 0.1, whose models have the address of its attempt."""

    def arguments(self, task: Any, resources: Any, rollout: Any) -> tuple[Any, ...]:
        bound = {
            name: each.with_attempted_rollout(rollout) if isinstance(each, ProxyLLM) else each
            for name, each in resources.items()
        }
        return super().arguments(task, bound, rollout)


def is_store(url: str) -> bool:
    """Whether a store of agl answers there, and no server of 0.1; waits for one of the two."""
    url, token = without_token(url)
    learn(token)
    told = False
    while True:
        try:
            with urllib.request.urlopen(f"{url.rstrip('/')}/v1/agl/health", timeout=10):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError as error:
            if not told:
                logger.info("waiting for the server at %s: %s", url, error)
            told = True
            time.sleep(RETRY_SECONDS)


def run_agent(
    agent: LitAgent[Any],
    url: str,
    *,
    tracer: Tracer,
    n_runners: int,
    max_rollouts: int | None,
    hooks: Any,
) -> None:
    """Run rollouts of the store at ``url`` until ``max_rollouts`` of each runner are done.

    Its token is that in the address, or in ``AGL_SERVER_TOKEN``; on the machine of the server it is
    found where the server's user left it.
    """
    url, token = without_token(url)
    parts = urlsplit(url)
    strategy = ClientServerExecutionStrategy(
        role="runner",
        server_host=parts.hostname,
        server_port=parts.port or DEFAULT_PORT,
        n_runners=n_runners,
        token=token,
    )
    Trainer(
        algorithm="baseline",  # of the server's, nothing is known here; it runs none
        strategy=strategy,
        tracer=tracer,
        max_rollouts=max_rollouts,
        hooks=hooks,
    ).fit(AgentOfAttempts(agent))
