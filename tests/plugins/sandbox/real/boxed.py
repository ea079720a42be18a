"""An agent that says what it can reach, or misbehaves as its task asks."""

import json
import os
import pathlib
import socket
import time
import urllib.request

import agl


def attempt(action):
    try:
        action()
        return "open"
    except OSError as error:
        return type(error).__name__


@agl.rollout
def agent(task: dict, llm: agl.LLM) -> float:
    if task.get("does") == "nothing":
        return 1.0
    if task.get("does") == "die":
        os.kill(os.getpid(), 9)
    if task.get("does") == "sleep":
        time.sleep(600)
    if task.get("does") == "eat":
        bytearray(2**30)
    agl.emit_object(
        {
            "user": os.getuid(),
            "repository": pathlib.Path(task["repository"]).exists(),
            "write": attempt(lambda: pathlib.Path("/usr/written").write_text("")),
            "port": attempt(lambda: socket.create_connection(("127.0.0.1", task["port"]), 2)),
        }
    )
    pathlib.Path("/tmp/written").write_text("its own folder")
    body = {"model": llm.model, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"content-type": "application/json", "authorization": f"Bearer {llm.api_key}"}
    request = urllib.request.Request(
        f"{llm.endpoint}/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request) as answer:
        return float(json.load(answer)["choices"][0]["message"]["content"] == "hello")
