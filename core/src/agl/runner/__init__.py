"""Runners: claim rollouts, run the agent under a tracer with a deadline, report.

``litagent`` is the loop, ``attempt`` one attempt from start to end, ``agent_call`` the call of the
agent that can be stopped, ``agent_threads`` where it runs, ``watchdog`` what ends an event loop
that hangs, ``result`` what the agent's return value means, ``heartbeat`` the sign of life.
"""

from agl.runner.agent_call import RolloutCancelledError as RolloutCancelledError
from agl.runner.litagent import LitAgentRunner as LitAgentRunner
