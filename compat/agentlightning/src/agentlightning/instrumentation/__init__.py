"""Instrumentation of libraries, by hand; tracers do it by themselves."""

from importlib.util import find_spec

from agentlightning.instrumentation.agentops import instrument_agentops, uninstrument_agentops

instrument_all, uninstrument_all = instrument_agentops, uninstrument_agentops

AGENTOPS_INSTALLED = find_spec("agentops") is not None
AGENTOPS_LANGCHAIN_INSTALLED = AGENTOPS_INSTALLED and find_spec("langchain_core") is not None
LITELLM_INSTALLED = find_spec("litellm") is not None
VLLM_INSTALLED = find_spec("vllm") is not None
WEAVE_INSTALLED = find_spec("weave") is not None
