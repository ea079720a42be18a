"""A local server that speaks what Tinker's SDK speaks, with a model that really learns.

The model is a table of logits: the next token depends on the one before it. Its losses, gradients
and Adam are those that Tinker documents, so the SDK's requests (protobuf ones included) train it.
Faults are switched on by attributes of ``Tinker``.
"""

import itertools
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as proto

from agl_http.server import ServerThread

BASE = "tiny/table"


class Table:
    """Logits per token before, and Adam's state."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.weights = np.random.default_rng(seed).normal(0, 0.3, (size, size))
        self.first, self.second = np.zeros((size, size)), np.zeros((size, size))
        self.steps = 0
        self.gradient = np.zeros((size, size))

    def copy(self, *, optimiser: bool) -> "Table":
        other = Table(len(self.weights))
        other.weights = self.weights.copy()
        if optimiser:
            other.first, other.second = self.first.copy(), self.second.copy()
            other.steps = self.steps
        return other

    def logprobs(self, before: np.ndarray) -> np.ndarray:
        logits = self.weights[before]
        logits = logits - logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def learn(self, before: Any, inputs: dict[str, Any], loss: str) -> tuple[float, np.ndarray]:
        """Adds the gradient; gives loss and log-probabilities of the targets."""
        targets = inputs["target_tokens"]
        all_logprobs = self.logprobs(before)
        logprobs = all_logprobs[np.arange(len(before)), targets]
        if loss == "cross_entropy":
            slope = -inputs["weights"]
            value = float((slope * logprobs).sum())
        else:
            ratio = np.exp(logprobs - inputs["logprobs"])
            advantages = inputs["advantages"]
            slope = -ratio * advantages
            value = float(slope.sum())
            if loss == "ppo":
                clipped = np.clip(ratio, 0.8, 1.2)
                value = float(-np.minimum(ratio * advantages, clipped * advantages).sum())
                slope = np.where(ratio * advantages <= clipped * advantages, slope, 0.0)
        push = -np.exp(all_logprobs)
        push[np.arange(len(before)), targets] += 1
        np.add.at(self.gradient, before, slope[:, None] * push)
        return value, logprobs

    def step(self, learning_rate: float, beta1: float, beta2: float, eps: float, **_: Any) -> None:
        self.steps += 1
        self.first = beta1 * self.first + (1 - beta1) * self.gradient
        self.second = beta2 * self.second + (1 - beta2) * self.gradient**2
        first = self.first / (1 - beta1**self.steps)
        second = self.second / (1 - beta2**self.steps)
        self.weights = self.weights - learning_rate * first / (np.sqrt(second) + eps)
        self.gradient = np.zeros_like(self.gradient)


def says(value: dict[str, Any]) -> Any:
    """A handler that always answers so."""

    async def answer(request: Request) -> Response:
        return JSONResponse(value)

    return answer


class Tinker:
    """The service.

    Args:
        size: Of the vocabulary.
        end: The token that ends an answer.
    """

    def __init__(self, size: int, end: int) -> None:
        self.key = "tml-key-of-acme-1234567890"
        self.size, self.end = size, end
        self.make_table = lambda: Table(size)
        """What has not learned anything yet."""
        self.random = np.random.default_rng(0)
        self.models: dict[str, Table] = {}
        self.saved: dict[str, Table] = {}
        self.written: list[str] = []
        """Every path at which weights to train on were saved, the newest last."""
        self.samplers: dict[str, Table] = {}
        self.futures: dict[str, Any] = {}
        self.numbers = itertools.count(1)
        self.log: list[str] = []
        self.losses: list[str] = []
        self.finished: list[str] = []
        # Faults.
        self.busy = 0
        """So many requests are answered with 429."""
        self.fail_training: str | None = None
        """What the next training ends with."""
        self.fail_after_steps: int | None = None
        """The key is refused after so many steps of the optimiser."""
        self.steps = 0
        self.echo_key = False
        self.paused = 0
        """So many looks at a result are answered with: not yet, there is no capacity."""
        self.server = ServerThread(self.app())

    def app(self) -> Starlette:
        models = [{"model_name": BASE, "max_context_length": 64}]
        named = ["create_session", "create_model", "forward_backward", "optim_step"]
        routes = [
            *(("POST", name, getattr(self, name)) for name in named),
            ("POST", "client/config", says({})),
            ("POST", "client/dynamic_config", says({})),
            ("POST", "session_heartbeat", says({"type": "session_heartbeat"})),
            ("POST", "sessions/{id}/finish", self.finish),
            ("POST", "telemetry", says({"status": "accepted"})),
            ("POST", "get_info", self.info),
            ("POST", "save_weights", self.save),
            ("POST", "save_weights_for_sampler", self.save_for_sampler),
            ("POST", "load_weights", self.load),
            ("POST", "create_sampling_session", self.create_sampler),
            ("POST", "asample", self.sample),
            ("POST", "retrieve_future", self.retrieve),
            ("GET", "get_server_capabilities", says({"supported_models": models})),
            ("GET", "samplers/{id}", self.sampler),
            ("GET", "training_runs/{id}/checkpoints", self.checkpoints),
            ("DELETE", "training_runs/{id}/checkpoints/{kind}/{name}", self.delete),
        ]
        made = [Route(f"/api/v1/{p}", self.guarded(h), methods=[m]) for m, p, h in routes]
        return Starlette(routes=made)

    def guarded(self, handler: Any) -> Any:
        async def answer(request: Request) -> Response:
            self.log.append(f"{request.method} {request.url.path.removeprefix('/api/v1/')}")
            expired = self.fail_after_steps is not None and self.steps >= self.fail_after_steps
            if request.headers.get("x-api-key") != self.key or expired:
                said = f": {request.headers.get('x-api-key')}" if self.echo_key else ""
                return JSONResponse({"detail": f"The API key is not valid{said}"}, 401)
            if self.busy and not request.url.path.endswith("telemetry"):
                self.busy -= 1
                return JSONResponse({"detail": "Too many requests"}, 429)
            return await handler(request)

        return answer

    def promise(self, result: Any, **more: Any) -> JSONResponse:
        """A future that is done: what it holds is fetched by ``retrieve_future``."""
        request_id = f"req-{next(self.numbers)}"
        self.futures[request_id] = result
        return JSONResponse({"request_id": request_id, **more})

    # Sessions

    async def create_session(self, request: Request) -> Response:
        return JSONResponse({"session_id": f"session-{next(self.numbers)}"})

    async def finish(self, request: Request) -> Response:
        self.finished.append((await request.json())["reason"]["type"])
        return JSONResponse({})

    # Training

    async def create_model(self, request: Request) -> Response:
        body = await request.json()
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
        self.models[model_id] = self.make_table()
        return self.promise({"model_id": model_id, "type": "create_model"}, model_id=model_id)

    async def load(self, request: Request) -> Response:
        body = await request.json()
        model_id = f"{body['session_id']}:train:{body['model_seq_id']}"
        if body["path"] not in self.saved:
            return JSONResponse({"detail": f"no weights at {body['path']}"}, 404)
        self.models[model_id] = self.saved[body["path"]].copy(optimiser=body["optimizer"])
        return self.promise({"path": body["path"], "type": "load_weights"}, model_id=model_id)

    async def info(self, request: Request) -> Response:
        model_id = (await request.json())["model_id"]
        data = {"arch": "table", "model_name": BASE}
        return JSONResponse({"type": "get_info", "model_id": model_id, "model_data": data})

    async def forward_backward(self, request: Request) -> Response:
        asked = proto.ForwardBackwardRequest()
        asked.ParseFromString(await request.body())
        if self.fail_training is not None:
            error, self.fail_training = self.fail_training, None
            return self.promise({"error": error, "category": "user"})
        self.losses.append(asked.loss_fn)
        table, total, found = self.models[asked.model_id], 0.0, []
        for datum in asked.data:
            (chunk,) = datum.model_input
            before = np.frombuffer(chunk.encoded_text.tokens, np.int32)
            kinds = {proto.DTYPE_INT64: np.int64}
            inputs = {
                name: np.frombuffer(tensor.dense, kinds.get(tensor.dtype, np.float32))
                for name, tensor in datum.loss_fn_inputs.items()
            }
            assert {len(before)} == {len(one) for one in inputs.values()}
            value, logprobs = table.learn(before, inputs, asked.loss_fn)
            total += value
            found.append(logprobs.astype(np.float32))
        answer = proto.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
        answer.metrics["loss:sum"] = total
        record = answer.loss_fn_outputs.add()
        record.num_datums = len(found)
        field = record.fields["logprobs"]
        field.dtype = proto.DTYPE_FLOAT32
        field.data = b"".join(one.tobytes() for one in found)
        offsets = np.cumsum([0, *(one.nbytes for one in found)])
        field.offsets = offsets.astype(np.int64).tobytes()
        return self.promise(answer.SerializeToString())

    async def optim_step(self, request: Request) -> Response:
        body = await request.json()
        self.models[body["model_id"]].step(**body["adam_params"])
        self.steps += 1
        return self.promise({"metrics": {}})

    async def save(self, request: Request) -> Response:
        body = await request.json()
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        self.saved[path] = self.models[body["model_id"]].copy(optimiser=True)
        self.written.append(path)
        return self.promise({"path": path, "type": "save_weights"})

    async def save_for_sampler(self, request: Request) -> Response:
        body = await request.json()
        path = f"tinker://{body['model_id']}/sampler_weights/{body['path']}"
        self.saved[path] = self.models[body["model_id"]].copy(optimiser=False)
        return self.promise({"path": path, "type": "save_weights_for_sampler"})

    async def checkpoints(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        if run_id not in self.models:
            return JSONResponse({"detail": "not found"}, 404)
        found = [
            {
                "checkpoint_id": path.split("/", 3)[3],
                "checkpoint_type": "training" if "/weights/" in path else "sampler",
                "time": "2026-01-01T00:00:00Z",
                "tinker_path": path,
            }
            for path in self.saved
            if path.startswith(f"tinker://{run_id}/")
        ]
        return JSONResponse({"checkpoints": found})

    async def delete(self, request: Request) -> Response:
        parts = request.path_params
        path = f"tinker://{parts['id']}/{parts['kind']}/{parts['name']}"
        if self.saved.pop(path, None) is None:
            return JSONResponse({"detail": "not found"}, 404)
        return Response(status_code=204)

    # Sampling

    async def create_sampler(self, request: Request) -> Response:
        body = await request.json()
        path = body.get("model_path")
        if path and path not in self.saved:
            return JSONResponse({"detail": f"no weights at {path}"}, 404)
        sampler_id = f"sampler-{next(self.numbers)}"
        self.samplers[sampler_id] = self.saved[path] if path else self.make_table()
        return JSONResponse({"sampling_session_id": sampler_id})

    async def sampler(self, request: Request) -> Response:
        return JSONResponse({"sampler_id": request.path_params["id"], "base_model": BASE})

    async def sample(self, request: Request) -> Response:
        body = await request.json()
        table = self.samplers[body["sampling_session_id"]]
        prompt = [token for chunk in body["prompt"]["chunks"] for token in chunk["tokens"]]
        parameters = body["sampling_params"]
        answer = proto.SampleResponse()
        ids = []
        for _ in range(body["num_samples"]):
            ids.append(f"seq-{next(self.numbers)}")
            tokens, logprobs, stop = self.draw(table, prompt[-1], parameters)
            answer.sequences.add(
                stop_reason=proto.STOP_REASON_STOP if stop else proto.STOP_REASON_LENGTH,
                tokens=np.array(tokens, np.int32).tobytes(),
                logprobs=np.array(logprobs, np.float32).tobytes(),
            )
        return self.promise(answer.SerializeToString(), sample_sequence_ids=ids)

    def draw(self, table: Table, before: int, parameters: dict[str, Any]):
        tokens: list[int] = []
        logprobs: list[float] = []
        # One that is given a seed draws the same whenever it is asked.
        seed = parameters.get("seed")
        chance = self.random if seed is None else np.random.default_rng(seed)
        while len(tokens) < (parameters.get("max_tokens") or 16):
            own = table.logprobs(np.array([before]))[0]
            temperature = parameters.get("temperature", 1)
            if temperature:
                odds = np.exp(own / temperature)
                before = int(chance.choice(self.size, p=odds / odds.sum()))
            else:
                before = int(own.argmax())
            tokens.append(before)
            logprobs.append(float(own[before]))
            if before == self.end:
                return tokens, logprobs, True
        return tokens, logprobs, False

    async def retrieve(self, request: Request) -> Response:
        request_id = (await request.json())["request_id"]
        if self.paused:
            self.paused -= 1
            again = {"type": "try_again", "queue_state": "paused_capacity"}
            return JSONResponse({**again, "request_id": request_id})
        result = self.futures[request_id]
        if isinstance(result, bytes):
            return Response(result, media_type="application/x-protobuf")
        return JSONResponse(result)
