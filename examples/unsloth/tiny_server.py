"""A model server for the tiny model: agl-torch's, with calls of tools in front of it.

    python tiny_server.py serve FOLDER       # prints its address
    python tiny_server.py load ADDRESS FOLDER

agl-torch's server refuses tools, as it does not look for calls in what a model writes. This one
does, in the form of Hermes: ``<tool_call> {"name": ..., "arguments": {...}} </tool_call>``. What
tools there are is not told to the model: the tiny one knows its only tool by heart.
"""

import argparse
import json
import re
import socket
import urllib.request
from typing import Any

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", flags=re.DOTALL)


def as_text(message: dict[str, Any]) -> dict[str, Any]:
    """A message as the chat template takes it: calls of tools are part of the text."""
    calls = [
        f'<tool_call> {{"name": "{call["function"]["name"]}", '
        f'"arguments": {call["function"]["arguments"]}}} </tool_call>'
        for call in message.get("tool_calls") or ()
    ]
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    return {"role": message["role"], "content": " ".join([content, *calls]).strip()}


def find_calls(text: str) -> list[dict[str, Any]]:
    """The calls in an answer; none when one cannot be read, which is the model's failure."""
    calls: list[dict[str, Any]] = []
    for number, written in enumerate(CALL.findall(text)):
        try:
            call = json.loads(written)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        except (ValueError, KeyError, TypeError):
            return []
        calls.append({"id": f"call_{number}", "type": "function", "function": function})
    return calls


def build_app(server: Any) -> Any:
    """The ASGI application in front of ``agl_torch.InferenceServer``."""
    import httpx
    from fastapi import FastAPI, Request
    from fastapi.responses import JSONResponse

    app = FastAPI()
    client = httpx.AsyncClient(base_url=server.url, timeout=None)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        has_tools = bool(body.pop("tools", None))
        for name in ("tool_choice", "parallel_tool_calls"):
            body.pop(name, None)
        if has_tools and body.get("stream"):
            message = "'stream': calls of tools are not found in streams here; leave it out"
            return JSONResponse({"error": {"message": message}}, 400)
        body["messages"] = [as_text(message) for message in body["messages"]]
        answer = await client.post("/chat/completions", json=body)
        data = answer.json()
        for choice in data.get("choices", ()) if has_tools else ():
            calls = find_calls(choice["message"]["content"])
            if calls:
                choice["message"] |= {"content": None, "tool_calls": calls}
                choice["finish_reason"] = "tool_calls"
        return JSONResponse(data, answer.status_code)

    @app.get("/v1/models")
    async def models() -> JSONResponse:
        return JSONResponse((await client.get("/models")).json())

    @app.post("/v1/load")
    def load(body: dict[str, str]) -> dict[str, str]:
        from transformers import AutoModelForCausalLM

        loaded = AutoModelForCausalLM.from_pretrained(body["model"]).float()
        with server.updating() as model:
            model.load_state_dict(loaded.state_dict())
        return body

    return app


def serve(folder: str) -> None:
    """Serve the model of a folder until the process is ended."""
    import torch
    import uvicorn
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agl_torch import InferenceServer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder).float()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with InferenceServer(model, tokenizer, model_name="policy") as server:
        sock = socket.create_server(("127.0.0.1", 0))
        print(f"http://127.0.0.1:{sock.getsockname()[1]}/v1", flush=True)
        config = uvicorn.Config(build_app(server), log_level="warning")
        uvicorn.Server(config).run(sockets=[sock])


def load(url: str, folder: str) -> None:
    """Make a running server answer with the weights of another folder."""
    request = urllib.request.Request(
        f"{url}/load", json.dumps({"model": folder}).encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=60).close()


def main() -> None:
    """Do one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("serve").add_argument("folder")
    loading = commands.add_parser("load")
    loading.add_argument("url")
    loading.add_argument("folder")
    options = parser.parse_args()
    if options.command == "serve":
        serve(options.folder)
    else:
        load(options.url, options.folder)


if __name__ == "__main__":
    main()
