"""Agents that are programs of their own: curl, Node.js, Codex, and Claude Code under its SDK."""

import asyncio
import atexit
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from scene import AGENT, KEY, QUESTION, WEATHER_TOOL, get_weather, messages_after_tool

NODE_OPENAI = "6.49.0"
"""Version of npm's package ``openai``."""
CODEX = "0.169.0"
"""Version of npm's package ``@openai/codex``."""
OLD_CODEX = "0.20.0"
"""The same, when it had OpenAI's ``local_shell`` for its model ``codex-mini-latest``."""


async def curl(base_url: str) -> str:
    """A program that calls the address, and nothing else."""
    text = ""
    for messages in ([{"role": "user", "content": QUESTION}], messages_after_tool()):
        body = {"model": "echo", "messages": messages, "tools": [WEATHER_TOOL]}
        output = await _run(
            *("curl", "-sS", f"{base_url}/chat/completions"),
            *("-H", "content-type: application/json", "-H", f"x-agl-agent: {AGENT}"),
            *("-d", json.dumps(body)),
        )
        text = json.loads(output)["choices"][0]["message"]["content"] or ""
    return text


async def node(base_url: str) -> str:
    """An agent in JavaScript, which gets the address as OpenAI's client reads it."""
    folder = await asyncio.to_thread(node_folder)
    variables = {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": KEY}
    variables |= {"MODEL": "echo", "AGENT_NAME": AGENT}
    return await _run("node", str(folder / "agent.mjs"), QUESTION, variables=variables)


@functools.cache
def node_folder() -> Path:
    """A temporary folder with the JavaScript agent and npm's package ``openai``."""
    folder = npm_folder(f"openai@{NODE_OPENAI}")
    shutil.copy(Path(__file__).with_name("agent.mjs"), folder)
    return folder


@functools.cache
def npm_folder(package: str) -> Path:
    """A temporary folder with this package of npm's, at a version."""
    folder = Path(tempfile.mkdtemp(prefix="agl-node-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = ["npm", "install", "--no-audit", "--no-fund", package]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)
    return folder


async def codex(
    base_url, question, folder, *settings, model = "echo",
    version = CODEX,
):  # fmt: skip
    """Codex, which works in ``folder``; the last thing that it says.

    Args:
        base_url: Of the gateway.
        question: What the user says.
        folder: Where it works.
        settings: Of its configuration, as ``name=value`` in TOML.
        model: What it asks for. It knows some by name, and offers them other tools.
        version: Which release.
    """
    package = await asyncio.to_thread(npm_folder, f"@openai/codex@{version}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        (Path(home) / ".codex").mkdir()
        (Path(home) / ".codex" / "config.toml").write_text(codex_config(base_url, model))
        said = Path(home) / "said.txt"
        await _run(
            *(str(package / "node_modules" / ".bin" / "codex"), "exec", "--skip-git-repo-check"),
            *("--dangerously-bypass-approvals-and-sandbox", "--cd", str(folder)),
            *(part for setting in settings for part in ("-c", setting)),
            *("--output-last-message", str(said), question),
            # Whatever it tries beyond the gateway ends at a closed port.
            variables={"HOME": home, "AGL_API_KEY": KEY} | CLOSED_NETWORK,
        )
        return said.read_text()


async def codex_weather(base_url: str) -> str:
    """Codex, which looks out of its shell."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return await codex(base_url, QUESTION, Path(folder))


CLOSED_NETWORK = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}


def codex_config(base_url: str, model: str) -> str:
    """Settings with which Codex calls this address and no other."""
    return f"""
model = "{model}"
model_provider = "agl"
web_search = "disabled"
analytics.enabled = false
features = {{ plugins = false, apps = false }}

[model_providers.agl]
name = "agl"
base_url = "{base_url}"
wire_api = "responses"
env_key = "AGL_API_KEY"
http_headers = {{ x-agl-agent = "{AGENT}" }}
"""


async def claude_code(base_url: str, question: str = QUESTION, **variables: str) -> str:
    """Claude Code, the CLI that the SDK's wheel bundles; the tool is a function of this process.

    Args:
        base_url: Of the gateway, or of a server of Anthropic's API.
        question: What the user says.
        variables: For its environment, beside those of ``claude_variables``.
    """
    import claude_agent_sdk as sdk

    @sdk.tool("get_weather", "The weather in a city.", {"city": str})
    async def weather(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": get_weather(arguments["city"])}]}

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        options = sdk.ClaudeAgentOptions(
            model="echo",
            mcp_servers={"city": sdk.create_sdk_mcp_server("city", tools=[weather])},
            allowed_tools=["mcp__city__get_weather", "Read", "Write", "Bash", "WebSearch"],
            cwd=home,
            env=claude_variables(base_url, home) | variables,
        )
        answer = ""
        async for message in sdk.query(prompt=question, options=options):
            if isinstance(message, sdk.ResultMessage):
                answer = str(message.result)
    return answer


def claude_variables(base_url: str, home: str) -> dict[str, str]:
    """The environment in which Claude Code calls this address and no other, and keeps nothing."""
    return {
        "HOME": home,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_CUSTOM_HEADERS": f"x-agl-agent: {AGENT}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        # All tools from the first call on, so that each prompt begins with the one before it.
        "ENABLE_TOOL_SEARCH": "false",
    }


def claude_version() -> str:
    """Version of the CLI in the SDK's wheel."""
    import claude_agent_sdk

    return str(claude_agent_sdk._cli_version.__cli_version__)


def version_of(program: str) -> str:
    """What a program says of itself."""
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"\d+(\.\d+)+", said.stdout)
    return found[0] if found else said.stdout.strip()


async def _run(*command: str, variables: dict[str, str] | None = None) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        env={**os.environ, **(variables or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}: {errors.decode()}")
    return output.decode().strip()
