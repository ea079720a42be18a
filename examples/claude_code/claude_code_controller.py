"""Runs Claude Code on an instance, and takes what it changed as a patch."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swebench_utils.workspace import Workspace

FOLDER = Path(__file__).parent
PROMPT = """Mend the bug that is described below in the repository in your working directory. Change
the source and no tests. You need not commit.

{problem_statement}"""
TOOLS = "Bash,Edit,Glob,Grep,Read,Write"
HOOK_LOG = "hooks.jsonl"


@dataclass
class Outcome:
    """What a run of Claude Code left."""

    patch: str
    """In git's form; empty where nothing was changed."""
    output: str
    """What it printed: JSON, with its last words and what it counted."""
    errors: str
    hooks: list[dict[str, Any]] = field(default_factory=list)
    """What its hooks were told, one after the other."""
    timed_out: bool = False


@dataclass
class ClaudeCodeController:
    """Claude Code against one address.

    Args:
        claude: The program.
        base_url: Of the gateway, for one attempt; Anthropic's clients add ``/v1`` themselves.
        api_key: Opens it.
        model_high: What it asks for in general.
        model_low: What it asks for in side tasks.
        max_turns: Model calls with tools, at most.
        timeout: Seconds of the whole.
    """

    claude: str
    base_url: str
    api_key: str
    model_high: str
    model_low: str
    max_turns: int = 5
    timeout: float = 1800.0

    def solve(self, problem_statement: str, workspace: Workspace) -> Outcome:
        """Let it work. One that ends with an error has done what it has done: see ``errors``."""
        log = workspace.write(HOOK_LOG, "")
        settings = self._write_settings(workspace, log)
        command = [
            *("claude", "--print", PROMPT.format(problem_statement=problem_statement)),
            *("--output-format", "json", "--max-turns", str(self.max_turns)),
            *("--model", self.model_high, "--settings", settings, "--allowedTools", TOOLS),
        ]
        if not workspace.path.startswith("/testbed"):
            command[0] = self.claude
        timed_out, output, errors = False, "", ""
        try:
            done = workspace.run(command, self._variables(), self.timeout)
            output, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            timed_out, errors = True, str(error)
        lines = workspace.run(["cat", log], {}, 60).stdout.splitlines()
        hooks = [json.loads(line) for line in lines]
        return Outcome(self._patch(workspace), output, errors, hooks, timed_out)

    def _write_settings(self, workspace: Workspace, log: str) -> str:
        hook = (FOLDER / "templates" / "handle_hook.template.sh").read_text(encoding="utf-8")
        handler = workspace.write("handle_hook.sh", hook.replace("HOOK_LOG", log))
        settings = (FOLDER / "templates" / "settings.template.json").read_text(encoding="utf-8")
        return workspace.write("settings.json", settings.replace("HANDLE_HOOK", handler))

    def _variables(self) -> dict[str, str]:
        """It calls this address and no other, and keeps nothing."""
        return {
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "ANTHROPIC_CUSTOM_HEADERS": "x-agl-agent: claude_code",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": self.model_low,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
            # All tools from the first call on, so that each prompt begins with the one before it.
            "ENABLE_TOOL_SEARCH": "false",
        }

    def _patch(self, workspace: Workspace) -> str:
        for command in (["git", "add", "--all"], ["git", "diff", "--cached", "HEAD"]):
            done = workspace.run(command, {}, 60)
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
        return done.stdout


def find_claude() -> str:
    """The program: on the path, or the one that claude-agent-sdk brings.

    Raises:
        FileNotFoundError: There is neither.
    """
    found = shutil.which("claude")
    if found is None:
        try:
            import claude_agent_sdk
        except ImportError:
            raise FileNotFoundError(
                "there is no 'claude' on the path and no claude-agent-sdk. Run: "
                "pip install claude-agent-sdk"
            ) from None
        found = str(Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude")
    return found
