"""Runners: claim rollouts, run the agent under a tracer with a deadline, report.

``litagent`` is the loop, ``claims`` what it asks the store for, ``attempt`` one attempt from start
to end. Around the agent: ``agent_call`` is a call of it that can be stopped, ``result`` is what its
return value means, ``grading`` is what its grader says of that. Beside it: ``held_spans`` is the
store as its tracer sees it, ``heartbeat`` is the sign of life, and ``sandbox`` the contract of what
runs an agent behind a wall.
"""

from agl.runner.agent_call import RolloutCancelledError as RolloutCancelledError
from agl.runner.litagent import LitAgentRunner as LitAgentRunner
