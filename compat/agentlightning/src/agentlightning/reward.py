"""Rewards."""

from agentlightning.emitter.reward import *
