"""A local server that speaks Azure OpenAI's interface, as documented, and its management address.

Files and fine-tuning jobs follow the OpenAPI description of api-version 2024-10-21, deployments
that of Microsoft.CognitiveServices, model calls the ``/openai/v1`` address. Its models are tables:
one that was trained answers a message as the examples of its training file did most often, with a
text or with calls of tools; the base model guesses. Faults are switched on by attributes of
``Azure``.
"""

import itertools
import json
import random
import time
from collections import Counter
from email import message_from_bytes
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agl_http.server import ServerThread

FIELDS = {"role", "name", "content", "tool_calls", "tool_call_id", "function_call", "weight"}
ANSWER_FIELDS = ("content", "tool_calls")
CALL_FIELDS = {"model", "messages", "temperature", "max_tokens", "stream", "n", "seed", "tools"}
ACCOUNT = (
    "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.CognitiveServices"
    "/accounts/acme"
)
DENIED = "Access denied due to invalid subscription key or wrong API endpoint."
STEPS = ("pending", "running")
"""A job shows these states before its last, one per look."""


def refuse(status: int, code: str, message: str, **headers: str) -> JSONResponse:
    """An error as Azure writes it."""
    return JSONResponse({"error": {"code": code, "message": message}}, status, headers)


class Login:
    """A credential like those of azure-identity, and the token that it gives."""

    def __init__(self, token: str) -> None:
        self.token, self.expires_on, self.refresh_on = token, int(time.time()) + 3600, None

    def get_token(self, *scopes: str, **options: object) -> "Login":
        return self


class Azure:
    """One resource with one base model and one deployment of it."""

    def __init__(self, guesses: tuple[str, ...] = ("Paris", "Rome", "Oslo")) -> None:
        self.key, self.token = "key-of-acme-1234567890", "token-of-acme-0987654321"
        self.guesses, self.random = guesses, random.Random(0)
        self.uploads = 0
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, list[dict[str, Any]]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.models: dict[str, dict[str, str]] = {"gpt-base-2026-01-01": {}}
        self.deployments: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []
        self.most_deployments = 0
        self.add_deployment("base", "gpt-base-2026-01-01", "Succeeded")
        self.min_examples = 10
        """Of a training file."""
        # Faults.
        self.busy, self.retry_after = 0, "0"
        """So many requests are answered with 429."""
        self.fail_jobs: list[dict[str, str]] = []
        """Errors of the jobs that come."""
        self.lose_job_answers = 0
        """So many jobs are started, and the answer is 500."""
        self.hold_jobs = False
        """Jobs that run go on running."""
        self.region_trains = True
        self.quota_left = 100
        self.deployments_get_ready = True
        self.fail_deployments = 0
        self.unreadable_files = False
        self.takes_deletes = True
        self.filtered: set[str] = set()
        """Questions that the content filter refuses."""
        self.echo_key = False
        """Errors repeat the key that was sent."""
        self.server = ServerThread(self.app())

    @property
    def url(self) -> str:
        return self.server.url

    def options(self) -> dict[str, Any]:
        """Those of an ``AzureSFT`` that is to find it, but for the login."""
        names = {"resource_group": "group-1", "account_name": "acme", "subscription_id": "sub-1"}
        model = {"base_deployment": "base", "base_model": "gpt-base-2026-01-01"}
        where = {"endpoint": self.url, "management_url": self.url, "poll_seconds": 0.02}
        return {**names, **model, **where, "api_key": self.key, "keep_fraction": 1.0}

    def app(self) -> Starlette:
        routes = [
            Route("/openai/files", self.upload, methods=["POST"]),
            Route("/openai/files", self.list_files),
            Route("/openai/files/{id}", self.file),
            Route("/openai/files/{id}", self.delete_file, methods=["DELETE"]),
            Route("/openai/fine_tuning/jobs", self.create_job, methods=["POST"]),
            Route("/openai/fine_tuning/jobs", self.list_jobs),
            Route("/openai/fine_tuning/jobs/{id}", self.job),
            Route("/openai/fine_tuning/jobs/{id}/events", self.events),
            Route("/openai/v1/chat/completions", self.chat, methods=["POST"]),
            Route(ACCOUNT + "/deployments", self.list_deployments),
            Route(ACCOUNT + "/deployments/{name}", self.put_deployment, methods=["PUT"]),
            Route(ACCOUNT + "/deployments/{name}", self.get_deployment),
            Route(ACCOUNT + "/deployments/{name}", self.delete_deployment, methods=["DELETE"]),
        ]
        guarded = [Route(r.path, self.guarded(r.endpoint), methods=r.methods) for r in routes]
        return Starlette(routes=guarded)

    def guarded(self, handler: Any) -> Any:
        async def answer(request: Request) -> Response:
            self.log.append(f"{request.method} {request.url.path}")
            is_arm = request.url.path.startswith("/subscriptions/")
            sent = request.headers.get("authorization", "").removeprefix("Bearer ")
            allowed = {self.token} if is_arm else {self.key, self.token}
            if (request.headers.get("api-key") or sent) not in allowed:
                if is_arm:
                    said = "The access token has expired."
                    return refuse(401, "ExpiredAuthenticationToken", said)
                said = f" ({request.headers.get('api-key')})" if self.echo_key else ""
                return refuse(401, "401", f"{DENIED}{said}")
            if "/openai/v1/" not in request.url.path and "api-version" not in request.query_params:
                return refuse(404, "404", "Resource not found")
            if self.busy:
                self.busy -= 1
                pause = {"Retry-After": self.retry_after}
                return refuse(429, "tooManyRequests", "Too many requests.", **pause)
            return await handler(request)

        return answer

    # Files

    async def upload(self, request: Request) -> Response:
        head = f"Content-Type: {request.headers['content-type']}\r\n\r\n".encode()
        parts = message_from_bytes(head + await request.body()).get_payload()
        named = {part.get_param("name", header="content-disposition"): part for part in parts}
        assert named["purpose"].get_payload().strip() == "fine-tune"
        name, content = named["file"].get_filename(), named["file"].get_payload(decode=True)
        self.uploads += 1
        file_id = f"file-{self.uploads:032x}"
        about = {"id": file_id, "object": "file", "purpose": "fine-tune", "filename": name}
        made = {"bytes": len(content), "created_at": 1646126127, "status": "pending"}
        self.files[file_id] = {**about, **made}
        self.contents[file_id] = [json.loads(line) for line in content.splitlines()]
        for line in self.contents[file_id]:
            for message in line["messages"]:
                if unknown := set(message) - FIELDS:
                    self.files[file_id]["status_details"] = f"unknown key {unknown}"
        return JSONResponse(self.files[file_id], 201)

    async def list_files(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": list(self.files.values())})

    async def file(self, request: Request) -> Response:
        file = self.files.get(request.path_params["id"])
        if file is None:
            return refuse(404, "notFound", "The file was not found.")
        shown = dict(file)
        bad = self.unreadable_files or "status_details" in file
        file["status"] = "error" if bad else "processed"
        if bad:
            file.setdefault("status_details", "Validation of jsonl data failed: line 1")
        return JSONResponse(shown)

    async def delete_file(self, request: Request) -> Response:
        if not self.takes_deletes:
            return refuse(403, "forbidden", "The role does not delete files.")
        if self.files.pop(request.path_params["id"], None) is None:
            return refuse(404, "notFound", "The file was not found.")
        return Response(status_code=204)

    # Jobs

    async def create_job(self, request: Request) -> Response:
        body = await request.json()
        file = self.files.get(body["training_file"])
        if not self.region_trains:
            said = "The specified base model does not support fine-tuning in this region."
            return refuse(400, "invalidPayload", said)
        if body["model"] not in self.models:
            return refuse(404, "notFound", f"The model {body['model']} was not found.")
        if file is None or file["status"] != "processed":
            return refuse(400, "invalidPayload", "The training file is not processed.")
        job_id = f"ftjob-{len(self.jobs):032x}"
        asked = ("model", "training_file", "hyperparameters", "suffix", "seed")
        about = {"id": job_id, "object": "fine_tuning.job", "created_at": 1646126127}
        made = {"organization_id": "", "result_files": [], "status": "pending"}
        self.jobs[job_id] = {**about, **{name: body.get(name) for name in asked}, **made}
        if self.lose_job_answers:
            self.lose_job_answers -= 1
            return refuse(500, "internalFailure", "Internal error. Please retry.")
        return JSONResponse(self.jobs[job_id], 201)

    async def list_jobs(self, request: Request) -> Response:
        jobs = list(self.jobs.values())
        after, limit = request.query_params.get("after"), 2
        if after:
            jobs = jobs[list(self.jobs).index(after) + 1 :]
        return JSONResponse({"object": "list", "data": jobs[:limit], "has_more": len(jobs) > limit})

    async def job(self, request: Request) -> Response:
        job = self.jobs[request.path_params["id"]]
        shown = dict(job)
        if job["status"] in STEPS and not self.hold_jobs:
            position = STEPS.index(job["status"]) + 1
            if position < len(STEPS):
                job["status"] = STEPS[position]
            else:
                self.end(job)
        return JSONResponse(shown)

    def end(self, job: dict[str, Any]) -> None:
        lines = self.contents[job["training_file"]]
        error = self.fail_jobs.pop(0) if self.fail_jobs else None
        if len(lines) < self.min_examples:
            said = f"At least {self.min_examples} examples are needed."
            error = {"code": "invalid_n_examples", "message": said}
        if error is not None:
            job.update(status="failed", error=error)
            return
        answers: dict[str, Counter[str]] = {}
        for line in lines:
            messages = line["messages"]
            for before, message in itertools.pairwise(messages):
                if message["role"] == "assistant" and message.get("weight", 1):
                    said = {key: message[key] for key in ANSWER_FIELDS if key in message}
                    answers.setdefault(before["content"], Counter())[json.dumps(said)] += 1
        table = {question: counted.most_common(1)[0][0] for question, counted in answers.items()}
        model = f"{job['model']}.ft-{job['id'][-4:]}-{job['suffix']}"
        self.models[model] = {**self.models[job["model"]], **table}
        tokens = sum(len(json.dumps(line)) // 4 for line in lines)
        job |= {"status": "succeeded", "fine_tuned_model": model, "finished_at": 1646127311}
        job["trained_tokens"] = tokens * job["hyperparameters"]["n_epochs"]

    async def events(self, request: Request) -> Response:
        job = self.jobs[request.path_params["id"]]
        messages = ["Job started.", *([job["error"]["message"]] if job.get("error") else [])]
        kind = {"object": "fine_tuning.job.event", "level": "info", "type": "message"}
        data = [
            {"id": f"ftevent-{n}", "created_at": 1646126127 + n, "message": message, **kind}
            for n, message in enumerate(messages)
        ]
        return JSONResponse({"object": "list", "data": data[::-1], "has_more": False})

    # Deployments

    def add_deployment(self, name: str, model: str, state: str, capacity: int = 1) -> None:
        version = {"format": "OpenAI", "version": "1"}
        self.deployments[name] = {
            "id": f"{ACCOUNT}/deployments/{name}",
            "type": "Microsoft.CognitiveServices/accounts/deployments",
            "name": name,
            "sku": {"name": "Standard", "capacity": capacity},
            "properties": {"model": {**version, "name": model}, "provisioningState": state},
        }
        self.most_deployments = max(self.most_deployments, len(self.deployments) - 1)

    async def put_deployment(self, request: Request) -> Response:
        body, name = await request.json(), request.path_params["name"]
        model, capacity = body["properties"]["model"]["name"], body["sku"]["capacity"]
        if capacity > self.quota_left:
            said = f"This operation require {capacity} new capacity in quota Tokens Per Minute."
            return refuse(400, "InsufficientQuota", said)
        if model not in self.models:
            return refuse(400, "DeploymentModelNotSupported", f"No model {model}.")
        self.add_deployment(name, model, "Creating", capacity)
        return JSONResponse(self.deployments[name], 201)

    async def get_deployment(self, request: Request) -> Response:
        found = self.deployments.get(request.path_params["name"])
        if found is None:
            return refuse(404, "DeploymentNotFound", "The deployment was not found.")
        shown = json.loads(json.dumps(found))
        if found["properties"]["provisioningState"] == "Creating" and self.deployments_get_ready:
            failed = self.fail_deployments > 0
            self.fail_deployments -= failed
            found["properties"]["provisioningState"] = "Failed" if failed else "Succeeded"
        return JSONResponse(shown)

    async def list_deployments(self, request: Request) -> Response:
        return JSONResponse({"value": list(self.deployments.values())})

    async def delete_deployment(self, request: Request) -> Response:
        found = self.deployments.pop(request.path_params["name"], None)
        return Response(status_code=204 if found is None else 200)

    # Model calls

    def guess(self, question: str, number: int, chance: random.Random) -> list[dict[str, Any]]:
        """So many answers of a model that has not learned any."""
        return [{"content": text} for text in chance.sample(self.guesses, number)]

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        if unknown := set(body) - CALL_FIELDS:
            name = sorted(unknown)[0]
            return refuse(400, "unknown_parameter", f"Unrecognized request argument: {name}")
        deployment = self.deployments.get(body["model"])
        state = deployment and deployment["properties"]["provisioningState"]
        if state != "Succeeded":
            return refuse(404, "DeploymentNotFound", "The API deployment does not exist.")
        question = body["messages"][-1]["content"]
        if question in self.filtered:
            said = (
                "The response was filtered due to the content management policy (content filter)."
            )
            return refuse(400, "content_filter", said)
        table = self.models[deployment["properties"]["model"]["name"]]
        known, number = table.get(question), body.get("n", 1)
        # One that is given a seed guesses the same whenever it is asked.
        chance = random.Random(body["seed"]) if "seed" in body else self.random
        answers = [json.loads(known)] * number if known else self.guess(question, number, chance)
        choices = []
        for index, answer in enumerate(answers):
            message = {"role": "assistant", "content": None, "refusal": None, **answer}
            ended = "tool_calls" if answer.get("tool_calls") else "stop"
            if body.get("max_tokens") == 1:  # a word is a token, and the end is another
                ended = "length"
            choices.append({"index": index, "finish_reason": ended, "message": message})
        about = {"object": "chat.completion", "created": 1646126127, "choices": choices}
        about["id"] = f"chatcmpl-{self.random.getrandbits(48):x}"
        about["model"] = deployment["properties"]["model"]["name"]
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        return JSONResponse({**about, "usage": usage})
