"""``AglManager``: what verl's trainer asks for rollouts; agents outside of verl make them.

verl's contract (``TaskRunnerV1.init_agent_loop_manager``): a class with ``create`` and a
``generate_sequences`` that does not block and puts what comes of the prompts into TransferQueue.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from agl.errors import AlgorithmError, ConfigError
from agl_http.server import ServerThread
from agl_models.completions import end_tokens
from agl_models.versions import MODEL_NAME
from agl_verl.backend import Serving, TokenBackend
from agl_verl.messages import Backend, GroupAnswer, GroupRequest, Settle, Settled, Update, Validated
from agl_verl.preflight import num_servers

logger = logging.getLogger("agl.verl")

T = TypeVar("T")

TELL_SECONDS = 300.0
"""How long the account of a step, and hooks, may take."""


class AglManager:
    """Passes verl's prompts on to the algorithm, and rows of tokens back; serves the model.

    Subclass it for ``VERL(daemon_cls=...)``; ``run_group`` is one prompt from question to answer.

    Args:
        config: verl's whole configuration.
        llm_client: verl's ``LLMServerClient``.
        link: Handle of the ``Link`` to the algorithm.
    """

    def __init__(self, config: Any, llm_client: Any, link: Any) -> None:
        self.config = config
        self.rollout = config.actor_rollout_ref.rollout
        self.link = link
        self.failure: str | None = None
        """Why nothing can come any more; the trainer raises it when it asks for more."""
        self.validation_failure = ""
        """Why the last validation group that gave nothing did so."""
        self._failed_in_a_row = 0
        self._closing = False
        self._groups: set[Future[None]] = set()
        # One thread: TransferQueue's client is used from one place at a time.
        self._queue_thread = ThreadPoolExecutor(1, thread_name_prefix="agl-verl-queue")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agl-verl", daemon=True)
        self._thread.start()
        host, api_key = _where_to_serve()
        serving = self.serving(llm_client)
        self._vocabulary_size = serving.vocabulary_size
        backend = TokenBackend(serving, api_key)
        self._server = ServerThread(backend, host)
        self._api_key = api_key

    @classmethod
    def create(
        cls,
        config: Any,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: Any = None,
        link: Any = None,
        step: int = 0,
    ) -> "AglManager":
        """Make one and announce it to the algorithm. verl's part of the arguments is by name.

        ``step`` is that of the checkpoint which verl has loaded.

        Raises:
            ConfigError: Not called by agl's task runner.
        """
        if link is None:
            raise ConfigError(
                "AglManager brings prompts to an agl algorithm, and there is none: run verl with "
                "agl.Trainer(algorithm=agl.VERL(config)), not with verl's own command line"
            )
        manager = cls(config, llm_client, link)
        manager.start(step)
        return manager

    def serving(self, llm_client: Any) -> Serving:
        """How the model is served to the gateway."""
        from verl.experimental.agent_loop.tool_parser import ToolParser
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.rollout.utils import get_max_position_embeddings

        model: Any = omega_conf_to_dataclass(self.config.actor_rollout_ref.model)
        tokenizer = model.tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"actor_rollout_ref.model.path: the tokenizer of "
                f"{self.config.actor_rollout_ref.model.path!r} has no chat template; set "
                "actor_rollout_ref.model.custom_chat_template, or take a model made for chat"
            )
        tool_format = self.rollout.multi_turn.format
        return Serving(
            client=llm_client,
            tokenizer=tokenizer,
            # As verl's servers have it.
            max_model_tokens=int(
                self.rollout.max_model_len or get_max_position_embeddings(model.hf_config)
            ),
            max_answer_tokens=int(self.rollout.response_length),
            end_token_ids=end_tokens(getattr(model, "generation_config", None), model.hf_config),
            vocabulary_size=getattr(model.hf_config.get_text_config(), "vocab_size", None),
            defaults={
                "temperature": float(self.rollout.temperature),
                "top_p": float(self.rollout.top_p),
                "top_k": int(self.rollout.top_k),
                **({"ignore_eos": True} if self.rollout.ignore_eos else {}),
            },
            template_options=dict(self.config.data.get("apply_chat_template_kwargs", {}) or {}),
            is_sticky=num_servers(self.config) > 1,
            seed_name="sampling_seed" if self.rollout.name == "sglang" else "seed",
            is_open=self._is_open,
            tool_parser=ToolParser.get_tool_parser(tool_format, tokenizer) if tool_format else None,
        )

    def start(self, step: int = 0) -> None:
        """Serve the model, and tell the algorithm where, and after which step."""
        self._server.start()
        backend = Backend(
            f"{self._server.url}/v1", MODEL_NAME, self._api_key, self._vocabulary_size, step
        )
        self._wait(self._ask(backend), None)

    def generate_sequences(self, batch: Any) -> None:
        """Take a batch of prompts; returns at once."""
        from agl_verl.queue import requests_of

        self.check()
        copies, val_copies = int(self.rollout.n), int(self.rollout.val_kwargs.n)
        for request in requests_of(batch, copies, val_copies):
            future = asyncio.run_coroutine_threadsafe(self._group(request), self._loop)
            self._groups.add(future)
            future.add_done_callback(self._groups.discard)

    def tell(self, message: Update | Settle | Validated) -> Settled:
        """Tell the algorithm what a step trains, that it is over, or what a validation found."""
        return self._wait(self._ask(message), TELL_SECONDS)

    def check(self) -> None:
        """Refuse to go on where nothing can come any more."""
        if self.failure is not None:
            raise AlgorithmError(self.failure)

    def close(self) -> None:
        """Stop serving, give up groups in flight, end all threads. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        for future in list(self._groups):
            future.cancel()
        with contextlib.suppress(TimeoutError):
            self._wait(self._end_tasks(), 10.0)
        self._server.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._queue_thread.shutdown(wait=False, cancel_futures=True)

    async def run_group(self, request: GroupRequest) -> GroupAnswer:
        """One prompt, from question to answer."""
        return await self._ask(request)

    async def _group(self, request: GroupRequest) -> None:
        from agl_verl import queue

        start = time.perf_counter()
        rows = False
        try:
            await self._in_queue(queue.put_status, request, "running")
            answer = await self.run_group(request)
            await self._in_queue(queue.put_rows, request, answer.rows, time.perf_counter() - start)
            rows = bool(answer.rows)
            self._count(request, answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.exception("group %s of step %d failed", request.uid, request.step)
            self.failure = self.failure or f"a group of step {request.step} failed: {error}"
        # Only now: verl clears a group that has ended, and nothing may be written to it after that.
        await self._in_queue(queue.put_status, request, "finished" if rows else "failure")

    def _is_open(self) -> bool:
        """In the mode ``sync`` verl puts its servers to sleep when the last group has ended."""
        return self.config.trainer.v1.trainer_mode != "sync" or bool(self._groups)

    def _count(self, request: GroupRequest, answer: GroupAnswer) -> None:
        if request.validate:
            self.validation_failure = answer.dropped or self.validation_failure
            return
        if answer.rows:
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= 2 * int(self.config.data.train_batch_size):
            self.failure = self.failure or (
                f"{self._failed_in_a_row} groups in a row gave nothing to train on, up to step "
                f"{request.step}. The last one: {answer.dropped}"
            )

    async def _in_queue(self, function: Any, *arguments: Any) -> None:
        await self._loop.run_in_executor(self._queue_thread, function, *arguments)

    async def _ask(self, message: Any) -> Any:
        return await self.link.ask.remote(message)

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _wait(self, work: Coroutine[Any, Any, T], seconds: float | None) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)


def _where_to_serve() -> tuple[str, str | None]:
    """Host and key: loopback where there is one machine, else this one's address and a key."""
    import ray

    if len([node for node in ray.nodes() if node["Alive"]]) == 1:
        return "127.0.0.1", None
    return str(ray.util.get_node_ip_address()), secrets.token_urlsafe(24)
