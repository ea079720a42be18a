"""Where Claude Code works: a folder of this machine, or the container of a SWE-bench instance."""

import os
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

IMAGE = "swebench/sweb.eval.x86_64.{}:latest"
"""Of an instance; in its name ``__`` is written ``_1776_``."""
GIT = ("git", "-c", "user.name=agl", "-c", "user.email=agl@localhost")


class Workspace(Protocol):
    """A repository at its base commit, in ``path``."""

    path: str

    def run(
        self, command: Sequence[str], variables: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """A command in it."""
        ...

    def write(self, name: str, text: str) -> str:
        """A file beside the repository; returns its path there."""
        ...

    def close(self) -> None:
        """Delete it."""
        ...


class FolderWorkspace:
    """A temporary folder with the files of an instance, as a git repository.

    Nothing keeps a command from the rest of the machine: it is for models that you trust.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="agl-swebench-")
        self.home = Path(self._folder.name) / "home"
        repository = Path(self._folder.name) / "repository"
        self.home.mkdir()
        self.path = str(repository)
        write_files(repository, {**files, ".gitignore": "__pycache__/\n"})
        for command in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "base")):
            subprocess.run([*GIT, *command], cwd=repository, check=True, capture_output=True)

    def run(
        self, command: Sequence[str], variables: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """With a home folder of its own."""
        return subprocess.run(
            list(command),
            cwd=self.path,
            env={**os.environ, "HOME": str(self.home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def write(self, name: str, text: str) -> str:
        """In the home folder."""
        path = self.home / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def close(self) -> None:
        """Delete the folder."""
        self._folder.cleanup()


class DockerWorkspace:
    """The official container of an instance, on the network of this machine.

    Args:
        instance_id: Of SWE-bench, as ``django__django-11099``.
        claude: The program, which is mounted read-only.
    """

    path = "/testbed"

    def __init__(self, instance_id: str, claude: str) -> None:
        self.name = f"agl-{uuid.uuid4().hex[:12]}"
        image = IMAGE.format(instance_id.lower().replace("__", "_1776_"))
        _docker(
            *("run", "--detach", "--rm", "--network", "host", "--name", self.name),
            *("--volume", f"{claude}:/usr/local/bin/claude:ro", image, "sleep", "infinity"),
        )

    def run(
        self, command: Sequence[str], variables: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """As root, which Claude Code is told is a sandbox."""
        variables = {**variables, "IS_SANDBOX": "1"}
        given = [f"--env={name}={value}" for name, value in variables.items()]
        return subprocess.run(
            ["docker", "exec", f"--workdir={self.path}", *given, self.name, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def write(self, name: str, text: str) -> str:
        """In ``/tmp``."""
        path = f"/tmp/{name}"
        subprocess.run(
            ["docker", "exec", "-i", self.name, "sh", "-c", f"cat > {path} && chmod 755 {path}"],
            input=text,
            text=True,
            check=True,
        )
        return path

    def close(self) -> None:
        """End the container."""
        _docker("kill", self.name)


def open_workspace(instance: Mapping[str, Any], claude: str) -> Workspace:
    """A folder for an instance that brings its files, else its container."""
    if "files" in instance:
        return FolderWorkspace(instance["files"])
    return DockerWorkspace(instance["instance_id"], claude)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Path within the folder -> text.

    Raises:
        ValueError: A path leads out of it.
    """
    for name, text in files.items():
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError(f"the file {name!r} leads out of its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _docker(*arguments: str) -> None:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"docker {arguments[0]} failed: {done.stderr.strip()}")
