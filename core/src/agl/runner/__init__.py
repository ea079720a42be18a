"""Runners: claim rollouts, run the agent under a tracer with a deadline, report.

``litagent`` has the runner and its loop. A rollout's life is in three files: ``claims`` claims it,
``attempt`` runs it, and ``report`` tells the store what came of it. ``agent_call`` calls the agent
so that the call ends when it must, and ``heartbeat`` gives signs of life. ``sandbox`` has the
contracts of agl-sandbox.
"""

from agl.runner.agent_call import RolloutCancelledError as RolloutCancelledError
from agl.runner.litagent import LitAgentRunner as LitAgentRunner
