"""A recording of every answer of the backends, and the gateway that plays it back without them.

A recording is a folder with ``calls.jsonl``: a line that says what it is, then one line per call,
in the order in which they ended. A call is known again by what the agent asked, not by who asked or
when, since rollouts and attempts have other ids in every run; equal requests get their answers in
the order of the recording.
"""

import asyncio
import difflib
import json
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TextIO

import msgspec

from agl.algorithm.gateway import ModelConfig
from agl.errors import ConfigError
from agl_gateway.backends import Answer
from agl_gateway.dialect import TOKENIZE, Exchange
from agl_gateway.errors import NO_RETRY, BrokenOffError, RefusedError
from agl_gateway.upstream import Failover, Upstream
from agl_runs.files import make_private_folder

logger = logging.getLogger("agl.gateway")

FILE = "calls.jsonl"
HEAD = {"agl_gateway_recording": 1}
MAX_COMPARED = 200
"""Recorded requests among which the nearest to one that differs is looked for."""
MAX_DIFF_LINES = 60
NOWHERE = "http://replay.invalid/v1"
"""Address of a backend that is never called."""
AS_TEXT = ("utf-8", "surrogateescape")
"""Encoding of chunks, and what becomes of bytes that are none: a chunk may end within a letter."""
KEPT_HEADERS = ("content-type", "retry-after", "x-request-id")


class Recording:
    """Backends whose every answer is written down in a folder, anew or behind what is there.

    Raises:
        ConfigError: There is a recording in it already, or it cannot be written to.
    """

    def __init__(self, backends: Upstream, folder: Path, *, resume: bool = False) -> None:
        self._backends = backends
        self._path = folder / FILE
        try:
            make_private_folder(folder)
            self._file: TextIO = self._path.open("a" if resume else "x", encoding="utf-8")
        except FileExistsError:
            raise ConfigError(
                f"{str(folder)!r} holds a recording already; give another folder, or remove it"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot record to {str(folder)!r}: {error.strerror}") from None
        if not resume:
            self._write(HEAD)

    async def aclose(self) -> None:
        await self._backends.aclose()
        self._file.close()

    async def open(
        self, failover: Failover, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        entry: dict[str, Any] = {"path": path, "request": json.loads(exchange.asked)}
        try:
            answer = await self._backends.open(failover, exchange, path, callbacks)
        except RefusedError as refused:
            self._write(
                {**entry, "refused": [refused.status, refused.message, refused.code], "chunks": []}
            )
            raise
        except asyncio.CancelledError:
            self._write({**entry, "left": True, "chunks": []})
            raise
        entry |= {
            "callbacks": list(callbacks if failover.backend.takes_extensions else ()),
            "status": answer.status,
            "headers": {
                name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers
            },
        }
        return self._recorded(answer, entry)

    def _recorded(self, answer: Answer, entry: dict[str, Any]) -> Answer:
        """The answer, which is written down when it is closed."""
        chunks: list[bytes] = []
        entry["left"] = True

        async def passed() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.chunks:
                    chunks.append(chunk)
                    yield chunk
            except BrokenOffError as error:
                del entry["left"]
                entry["broken"] = str(error)
                raise
            del entry["left"]

        def close() -> None:
            answer.close()
            self._write({**entry, "chunks": [chunk.decode(*AS_TEXT) for chunk in chunks]})

        return Answer(answer.status, answer.headers, passed(), close)

    def _write(self, entry: Mapping[str, Any]) -> None:
        # ASCII: bytes that are no UTF-8 stand as surrogates.
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")
        self._file.flush()


class Replay:
    """A recording in the place of backends.

    The first request that was not recorded, or not so often, ends it: this call and all after it
    are refused with the difference to what was recorded.

    Raises:
        ConfigError: There is none.
    """

    def __init__(self, folder: Path) -> None:
        self._entries: defaultdict[str, deque[Mapping[str, Any]]] = defaultdict(deque)
        self.model_names: list[str] = []
        """What was asked for in the recording."""
        self.difference: str | None = None
        """Why it has stopped."""
        self.stopped: Future[str] = Future()
        """Its result is the difference, as soon as there is one."""
        self.stopped.set_running_or_notify_cancel()  # who waits for it may not cancel it
        for entry in _read(folder):
            self._entries[_key(entry["path"], entry["request"])].append(entry)
            name = entry["request"].get("model")
            if isinstance(name, str) and name not in self.model_names:
                self.model_names.append(name)

    def add_models(self, model_list: list[ModelConfig]) -> list[ModelConfig]:
        """The list, with those models of the recording that it lacks."""
        given = {entry.get("model_name") for entry in model_list}
        return model_list + [
            {
                "model_name": name,
                "litellm_params": {"model": f"hosted_vllm/{name}", "api_base": NOWHERE},
            }
            for name in self.model_names
            if name not in given
        ]

    async def aclose(self) -> None:
        left = sum(map(len, self._entries.values()))
        if left:
            logger.warning("replay: %d recorded calls were not asked for", left)

    async def open(
        self, failover: Failover, exchange: Exchange, path: str, callbacks: tuple[str, ...]
    ) -> Answer:
        """The recorded answer.

        Raises:
            RefusedError: There is none, or the recorded call was refused too.
        """
        request = json.loads(exchange.asked)
        entries = self._entries.get(_key(path, request))
        if not entries and path == TOKENIZE:
            raise RefusedError(404, "the recording has no such count of tokens")
        if not entries or self.difference is not None:
            raise self._stop(path, request)
        entry = entries.popleft()
        if "refused" in entry:
            raise RefusedError(*entry["refused"])
        # What was asked for in the agent's name is taken out of the answer once more.
        exchange.body_for(failover.take().model, entry.get("callbacks", ()))
        if "status" not in entry:
            await asyncio.Event().wait()  # as then: until the client hangs up
        return Answer(entry["status"], entry["headers"], _replayed(entry))

    def _stop(self, path: str, request: Mapping[str, Any]) -> RefusedError:
        if self.difference is None:
            self.difference = self._describe(path, request)
            logger.error("%s", self.difference)
            self.stopped.set_result(self.difference)
        return RefusedError(409, self.difference, "replay_differs", headers=NO_RETRY)

    def _describe(self, path: str, request: Mapping[str, Any]) -> str:
        wanted = _pretty(path, request)
        open_entries = [entry for entries in self._entries.values() for entry in entries]
        if _key(path, request) in self._entries:
            why, lines = "this request comes more often than in the recording", wanted
        elif not open_entries:
            why, lines = "every recorded call is answered, and this one comes besides", wanted
        else:
            candidates = [
                _pretty(entry["path"], entry["request"]) for entry in open_entries[:MAX_COMPARED]
            ]
            nearest = max(
                candidates, key=lambda lines: difflib.SequenceMatcher(None, lines, wanted).ratio()
            )
            why = "this request is not in the recording; the nearest recorded one differs so"
            lines = list(difflib.unified_diff(nearest, wanted, "recorded", "asked", lineterm=""))
        if len(lines) > MAX_DIFF_LINES:
            lines[MAX_DIFF_LINES:] = [f"... {len(lines) - MAX_DIFF_LINES} more lines"]
        return "\n".join([f"the replay has stopped: {why}", *lines])


async def _replayed(entry: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """The pieces of an answer out of a recording."""
    for text in entry["chunks"]:
        yield text.encode(*AS_TEXT)
        await asyncio.sleep(0)  # each is written by itself, as it came
    if "broken" in entry:
        raise BrokenOffError(entry["broken"])
    if "left" in entry:
        await asyncio.Event().wait()


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / FILE
    entries: list[dict[str, Any]] = []
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    logger.warning("%s: line %d is unfinished and left out", path, number)
                    break
                try:
                    entry = json.loads(line)
                    if number == 1 and entry != HEAD:
                        raise ValueError(f"expected {json.dumps(HEAD)}")
                    if number > 1:
                        _ = entry["path"], entry["request"].get("model"), entry["chunks"]
                        entries.append(entry)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"{str(path)!r}, line {number}: this is no recording of agl gateway: "
                        f"{error}"
                    ) from None
    except OSError as error:
        raise ConfigError(
            f"no recording in {str(folder)!r}: {path.name}: {error.strerror}; make one with "
            "agl gateway --record"
        ) from None
    if not number:
        raise ConfigError(f"{str(path)!r} is empty: this is no recording of agl gateway")
    return entries


def _key(path: str, request: Mapping[str, Any]) -> str:
    return f"{path} {msgspec.json.encode(request, order='sorted').decode()}"


def _pretty(path: str, request: Mapping[str, Any]) -> list[str]:
    text = json.dumps(request, indent=2, sort_keys=True, ensure_ascii=False)
    return [f"POST /v1/{path}", *text.splitlines()]
