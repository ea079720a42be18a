"""A small OpenAI-compatible server over a causal model of ``transformers``."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import Any

from agl.errors import ConfigError
from agl_http.addresses import is_loopback
from agl_http.server import ServerThread
from agl_models.sampling.app import ChatApp
from agl_models.sampling.batcher import Weights
from agl_models.versions import MODEL_NAME, Served
from agl_torch.generate import Sampler
from agl_torch.models import check_vocabulary

FIXED_ROWS = 16
"""Of the batches of a deterministic server: a few requests waste little, and many fill several."""


def check_key(host: str, api_key: str | None) -> None:
    """Whether a server may listen there.

    Raises:
        ConfigError: Other machines can reach it, and there is no key.
    """
    if not api_key and not is_loopback(host):
        raise ConfigError(
            f"host {host!r} can be reached from other machines, so a key is needed; set "
            "AGL_SERVE_API_KEY to a long random text, pass api_key=..., or serve on 127.0.0.1"
        )


class TorchApp(ChatApp):
    """The application, by its name."""

    owner = "agl-torch"
    title = "agl-torch's server"


class InferenceServer:
    """Serves ``/v1/chat/completions``, ``/v1/models`` and ``/health`` from a thread.

    The model is shared, not copied: after a change of its parameters the next answers come from
    the new ones. Changes are made inside ``updating()``, which waits for the answers in progress
    and keeps others waiting, so no answer mixes two versions of the weights.

    Log-probabilities are natural, of the sampled token under the softmax at the request's
    temperature, over what a form allows, before ``top_p``; at temperature 0 under temperature 1. A
    request with a ``seed``
    gets the same draws whatever else is sampled at the same time. So it gets the same tokens, but
    where a draw falls between two that rounding, which batches of other shapes do otherwise, has
    moved; ``deterministic`` rules that out.

    Args:
        model: A causal model of ``transformers``; put in evaluation mode.
        tokenizer: Its tokenizer, with a chat template.
        model_name: What requests must ask for.
        host: Where to listen. Anything but loopback needs an ``api_key``.
        port: 0 takes a free one.
        max_model_tokens: Prompt and answer together; None takes the model's limit.
        max_batch_size: Sequences sampled at once.
        prefix_cache_mib: Memory for keys and values up to which answered conversations are kept, so
            that what continues them, or begins like them, is not read anew; none are kept over a
            change of the weights, or with ``deterministic``.
        seed: Of draws for requests without a seed.
        dtype: In which the model computes; None is that of its weights.
        api_key: What requests must carry, ``/health`` aside; None takes all.
        deterministic: What a request with a ``seed`` is answered depends on the request and the
            weights alone, to the last bit of its log-probabilities; every batch is computed with
            the same number of rows for that. See ``use_deterministic_algorithms``.

    Raises:
        ConfigError: The tokenizer has no chat template or more tokens than the model, other
            machines can reach the host and there is no key, the port is in use (at ``start``), or
            ``deterministic`` cannot be had.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        model_name: str = "model",
        host: str = "127.0.0.1",
        port: int = 0,
        max_model_tokens: int | None = None,
        max_batch_size: int = 64,
        prefix_cache_mib: int = 1024,
        seed: int = 0,
        dtype: str | None = None,
        api_key: str | None = None,
        deterministic: bool = False,
    ) -> None:
        check_key(host, api_key)
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"InferenceServer: the tokenizer {type(tokenizer).__name__} has no chat_template; "
                "set tokenizer.chat_template, or take a model that was made for chat"
            )
        check_vocabulary(model, tokenizer)
        self.model = model.eval()
        self.model_name = model_name
        self.weights = Weights()
        rows = min(FIXED_ROWS, max_batch_size) if deterministic else None
        self.sampler = Sampler(
            model, tokenizer, seed, dtype, rows, max_batch_size, prefix_cache_mib * 2**20
        )
        if rows is not None:
            self.sampler.check_batches(rows)
        app = TorchApp(
            self.sampler,
            self.weights,
            model_name,
            max_model_tokens or model.config.max_position_embeddings,
            api_key or None,
        )
        self._thread = ServerThread(app, host, port)

    @property
    def url(self) -> str:
        """Base address for an OpenAI client, ending in ``/v1``."""
        return f"{self._thread.url}/v1"

    @property
    def version(self) -> int:
        """Which weights answer; one more after each ``updating()`` that changed them."""
        return self.weights.version

    def start(self) -> None:
        """Serve; returns when requests are taken."""
        self._thread.start()

    def stop(self) -> None:
        """End after the requests in progress. Safe to call twice."""
        self._thread.stop()

    def __enter__(self) -> "InferenceServer":
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @contextlib.contextmanager
    def updating(self) -> Generator[Any]:
        """Change the weights inside the block; nothing is sampled meanwhile.

        The version goes up, but if the block calls ``weights.unchanged()``; see ``Weights``.

        Yields:
            The model.
        """
        with self.weights.changing():
            self.sampler.forget()
            yield self.model

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[Served]:
        """A block in which it answers as the model in training."""
        self.start()
        try:
            yield Served({"model": f"hosted_vllm/{MODEL_NAME}", "api_base": self.url})
        finally:
            await asyncio.to_thread(self.stop)
