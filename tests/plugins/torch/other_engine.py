"""Stands for ``vllm`` or ``sglang.launch_server`` in tests: our server behind their commands.

It answers with the weights of the folder that it was given, and has the requests that replace them.
Like the real ones it refuses to answer while it sleeps, has no weights after it until they are read
again, and writes what it is told to the file ``told`` beside the folder.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import torch
import uvicorn

from agl_http.layers import JSON, read_body, send_whole
from agl_models.sampling.batcher import Weights
from agl_torch.generate import Sampler
from agl_torch.models import load_model, load_tokenizer
from agl_torch.server import TorchApp

NAMES = {"--model-path": "model", "--port": "port", "--served-model-name": "name"}


class Engine:
    """The application: control requests here, all others to the model."""

    def __init__(self, model: str, name: str) -> None:
        self.folder = Path(model)
        sampler = Sampler(load_model(model, "cpu", "float32"), load_tokenizer(model, model), 0)
        self.model = sampler.model
        self.app = TorchApp(sampler, Weights(), name, 64)
        self.is_asleep = self.is_paused = False
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        control = getattr(self, scope.get("path", "/")[1:].replace("/", "_"), None)
        if control is None or scope["type"] != "http":
            if scope["type"] == "http" and scope["method"] == "POST":
                assert not self.is_asleep
                assert not self.is_paused
                self.calls += 1
                if os.environ.get("ENGINE_FAKE") == f"dies at {self.calls}":
                    os._exit(9)
            return await self.app(scope, receive, send)
        body = json.loads(await read_body(receive, 2**20) or b"{}")
        query = {key: value[0] for key, value in parse_qs(scope["query_string"].decode()).items()}
        with (self.folder.parent / "told").open("a") as told:
            told.write(f"{scope['path'][1:]} {json.dumps({**query, **body})}\n")
        try:
            control(**query, **body)
        except Exception as error:
            return await send_whole(send, 500, repr(error).encode(), JSON)
        return await send_whole(send, 200, b"{}", JSON)

    def pause(self, mode: str) -> None:
        self.is_paused = True

    def resume(self) -> None:
        assert not self.is_asleep
        self.is_paused = False

    def sleep(self, level: str) -> None:
        assert self.is_paused
        self.is_asleep = True
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()

    def wake_up(self, tags: str) -> None:
        if tags == "kv_cache":
            self.is_asleep = False

    def collective_rpc(self, method: str) -> None:
        assert method == "reload_weights"
        once = self.folder.parent / "broken once"
        if os.environ.get("ENGINE_FAKE") == "broken" or once.exists():
            once.unlink(missing_ok=True)
            raise OSError("cannot read the weights")
        self.model.load_state_dict(load_model(str(self.folder), "cpu", "float32").state_dict())

    def v1_load_lora_adapter(self, lora_name: str, lora_path: str, load_inplace: bool) -> None:
        self.collective_rpc("reload_weights")

    # --- as SGLang calls them

    def pause_generation(self, mode: str) -> None:
        self.is_paused = True

    def release_memory_occupation(self) -> None:
        self.sleep("2")

    def resume_memory_occupation(self, tags: list[str]) -> None:
        self.wake_up(*tags)

    def update_weights_from_disk(self, model_path: str) -> None:
        assert Path(model_path) == self.folder
        self.collective_rpc("reload_weights")

    def continue_generation(self) -> None:
        self.resume()


def main(arguments: list[str]) -> None:
    if arguments[0] == "serve":
        arguments = ["--model-path", *arguments[1:]]
    flags = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    given = {name: flags[flag] for flag, name in NAMES.items()}
    name, _, adapter = flags.get("--lora-modules", "").partition("=")
    app = Engine(adapter or given["model"], name or given["name"])
    (app.folder.parent / "command").write_text(" ".join(arguments))
    uvicorn.run(app, host="127.0.0.1", port=int(given["port"]), log_level="warning")


if __name__ == "__main__":
    main(sys.argv[1:])
