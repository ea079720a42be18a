"""One small agent in each framework: it asks for the weather in Paris, calls a tool, and answers.

Each is called with a base address, as an agent under agl is, and returns its answer's text. The
modules of the agents import their frameworks at the top, as people do: what is installed is there
before the tracer of the process begins, and what an instrumentation does then is what users get.
"""

import importlib
import importlib.util
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from processes import (
    CODEX,
    NODE_OPENAI,
    claude_code,
    claude_version,
    codex_weather,
    curl,
    node,
    version_of,
)

Agent = Callable[[str], Awaitable[str]]


@dataclass(frozen=True)
class Framework:
    """How one framework is run, and what of it was tested.

    Args:
        name: As the pages have it.
        agent: Called with a base address, returns the answer's text; or where it stands here,
            ``module:function``.
        distributions: Whose versions are those of the framework.
        module: What has to be importable.
        programs: What has to be on the machine.
        speaks: Which API of the model's server the agent calls.
        calls: How many model calls it makes for the task.
        versions_of: Further versions, by name.
    """

    name: str
    agent: Agent | str
    distributions: tuple[str, ...] = ()
    module: str = ""
    programs: tuple[str, ...] = ()
    speaks: Literal["chat", "responses", "messages"] = "chat"
    calls: int = 2
    versions_of: Callable[[], dict[str, str]] = dict

    def missing(self) -> str | None:
        """What this environment lacks; None when the framework can run."""
        if self.module and importlib.util.find_spec(self.module) is None:
            return self.module
        return next((each for each in self.programs if shutil.which(each) is None), None)

    def load(self) -> Agent:
        """The agent; its framework is imported now."""
        if not isinstance(self.agent, str):
            return self.agent
        module, _, function = self.agent.partition(":")
        return getattr(importlib.import_module(f"frameworks.{module}"), function)

    def versions(self) -> dict[str, str]:
        """What is tested here, by name."""
        return {name: metadata.version(name) for name in self.distributions} | self.versions_of()


OPENAI_AGENTS = {"distributions": ("openai-agents", "openai"), "module": "agents"}
AGENT_FRAMEWORK = {
    "distributions": ("agent-framework-core", "agent-framework-openai"),
    "module": "agent_framework_openai",
}

FRAMEWORKS: dict[str, Framework] = {
    each.name: each
    for each in (
        Framework("OpenAI SDK, chat", "openai_sdk:openai_chat", ("openai",), "openai"),
        Framework("OpenAI SDK, stream", "openai_sdk:openai_stream", ("openai",), "openai"),
        Framework("OpenAI SDK, parse", "openai_sdk:openai_parse", ("openai",), "openai"),
        Framework(
            "OpenAI SDK, Responses",
            "openai_sdk:openai_responses",
            ("openai",),
            "openai",
            speaks="responses",
        ),
        Framework("OpenAI Agents SDK, chat", "openai_agents:openai_agents_chat", **OPENAI_AGENTS),
        Framework(
            "OpenAI Agents SDK, Responses",
            "openai_agents:openai_agents_responses",
            **OPENAI_AGENTS,
            speaks="responses",
        ),
        Framework(
            "LangChain agent",
            "langchain_agents:langchain_agent",
            ("langchain", "langchain-openai"),
            "langchain",
        ),
        Framework(
            "LangGraph graph",
            "langchain_agents:langgraph_graph",
            ("langgraph", "langchain-openai"),
            "langgraph",
        ),
        Framework(
            "AutoGen",
            "autogen_agents:autogen_agent",
            ("autogen-agentchat", "autogen-ext"),
            "autogen_ext",
        ),
        Framework("CrewAI", "crewai_agents:crewai_crew", ("crewai", "openai"), "crewai"),
        Framework(
            "Pydantic AI",
            "pydantic_ai_agents:pydantic_ai_agent",
            ("pydantic-ai-slim",),
            "pydantic_ai",
        ),
        Framework(
            "Microsoft Agent Framework, chat",
            "microsoft_agents:agent_framework_chat",
            **AGENT_FRAMEWORK,
        ),
        Framework(
            "Microsoft Agent Framework, Responses",
            "microsoft_agents:agent_framework_responses",
            **AGENT_FRAMEWORK,
            speaks="responses",
        ),
        Framework(
            "smolagents", "smolagents_agents:smolagents_agent", ("smolagents",), "smolagents"
        ),
        Framework(
            "Anthropic SDK",
            "anthropic_sdk:anthropic_messages",
            ("anthropic",),
            "anthropic",
            speaks="messages",
        ),
        Framework(
            "Claude Code",
            claude_code,
            ("claude-agent-sdk",),
            "claude_agent_sdk",
            speaks="messages",
            versions_of=lambda: {"its CLI": claude_version()},
        ),
        Framework(
            "Codex",
            codex_weather,
            programs=("npm",),
            speaks="responses",
            versions_of=lambda: {"codex": CODEX},
        ),
        Framework(
            "Node.js, npm's openai",
            node,
            programs=("node", "npm"),
            versions_of=lambda: {"openai": NODE_OPENAI, "node": version_of("node")},
        ),
        Framework(
            "curl", curl, programs=("curl",), versions_of=lambda: {"curl": version_of("curl")}
        ),
    )
}
