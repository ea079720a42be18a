"""Tinker, as far as a run needs it: a model that is trained, saved, and sampled from.

Everything goes through Tinker's own SDK, which waits for its queues and tries again by itself when
the service is busy or away.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import tinker
from tinker import types

from agl.errors import AglError, ConfigError
from agl.utils.secrets import hide, learn
from agl_models.provider_errors import RemoteRefusalError, status_of
from agl_tinker.data import Loss, logprob_gap, shifted

T = TypeVar("T")
CLOSE_SECONDS = 30.0
"""So long a session may take to end."""


class _MissingError(ConfigError):
    """It is not at Tinker."""


_ADVICE: dict[int | None, tuple[type[AglError], str]] = {
    401: (
        ConfigError,
        "The key is expired or wrong: give a new TINKER_API_KEY and run again; what was done so "
        "far is kept",
    ),
    402: (ConfigError, "Set up or top up the account's billing, and run again"),
    403: (ConfigError, "The key may not do that; check its project"),
    404: (_MissingError, "It is not there, or was deleted"),
    429: (RemoteRefusalError, "The service is too busy; run again later"),
}
_OTHERWISE = (RemoteRefusalError, "Run again: it goes on where it was")


@dataclass(frozen=True)
class Saved:
    """Weights at Tinker."""

    state: str
    """With the optimiser, to train on."""
    sampler: str
    """To sample from."""


class TinkerService:
    """Asks Tinker, in one session.

    Args:
        base_url: None takes ``TINKER_BASE_URL``, else Tinker's own.
        api_key: None takes ``TINKER_API_KEY``, else what ``tinker auth login`` stored.
        label: Shown in Tinker's console.
    """

    def __init__(self, base_url: str | None, api_key: str | None, label: str) -> None:
        learn(api_key or os.environ.get("TINKER_API_KEY"))
        self._rest = partial(tinker.RestClient, base_url=base_url, api_key=api_key)
        self._service = tinker.ServiceClient(
            {"agl": label}, display_name=label, base_url=base_url, api_key=api_key
        )
        self._trainer: Any = None
        self._state: str | None = None
        """Whose weights the trainer has; None for a new one or none."""

    async def open(self, base_model: str) -> int | None:
        """See whether the key works and the model is there.

        Returns:
            How many tokens the model takes; None where Tinker does not say.

        Raises:
            ConfigError: Key or model are not known.
        """
        found = await ask("list the models", lambda: self._rest().get_server_capabilities())
        models = {one.model_name: one for one in found.supported_models}
        if base_model not in models:
            known = ", ".join(sorted(name for name in models if name))
            raise ConfigError(f"Tinker: there is no model {base_model!r}; there are: {known}")
        return models[base_model].max_context_length

    async def begin(self, base_model: str, rank: int, seed: int) -> None:
        """A new adapter to train."""
        self._trainer = await ask(
            f"make an adapter of {base_model!r}",
            lambda: self._service.create_lora_training_client(base_model, rank=rank, seed=seed),
        )
        self._state = None

    async def resume(self, state: str) -> None:
        """Train on from saved weights, with their optimiser."""
        if self._state == state:
            return
        self._trainer = await ask(
            f"load {state!r}",
            lambda: self._service.create_training_client_from_state_with_optimizer(state),
        )
        self._state = state

    async def step(
        self, examples: Sequence[dict[str, Any]], loss: Loss, adam: dict[str, float]
    ) -> dict[str, float | None]:
        """One gradient step.

        Args:
            examples: Of ``data.example_of_row``.
            adam: Of ``tinker.AdamParams``.

        Returns:
            Tinker's metrics, and ``logprob_gap`` (see ``data``).
        """
        data: list[types.Datum] = []
        for example in examples:
            tokens, inputs = shifted(example, loss)
            given: Any = inputs  # lists: the SDK makes tensors of them
            data.append(
                types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=given)
            )
        self._state = None
        # The optimiser's step is sent before the first answer is there, as Tinker advises.
        learned = self._trainer.forward_backward(data, loss)
        stepped = self._trainer.optim_step(types.AdamParams(**adam))
        output = await ask("train", lambda: learned)
        await ask("take a step of the optimiser", lambda: stepped)
        logprobs = [one["logprobs"].data for one in output.loss_fn_outputs if "logprobs" in one]
        gap = logprob_gap(examples, logprobs) if len(logprobs) == len(examples) else None
        return {**output.metrics, "logprob_gap": gap}

    def paths(self, name: str) -> Saved:
        """Where ``save`` puts the weights."""
        model_id = self._trainer.model_id
        return Saved(
            f"tinker://{model_id}/weights/{name}", f"tinker://{model_id}/sampler_weights/{name}"
        )

    async def save(self, name: str) -> Saved:
        """Keep the weights under a name."""
        state = await ask(f"save {name!r}", lambda: self._trainer.save_state(name, overwrite=True))
        sampler = await ask(
            f"save {name!r} for sampling", lambda: self._trainer.save_weights_for_sampler(name)
        )
        self._state = state.path
        return Saved(state.path, sampler.path)

    async def has(self, saved: Saved) -> bool:
        """Whether weights are at Tinker, both for training and for sampling."""
        run_id = saved.state.removeprefix("tinker://").partition("/")[0]
        paths = set[str]()
        with suppress(_MissingError):
            found = await ask(
                f"list the weights of {run_id!r}", lambda: self._rest().list_checkpoints(run_id)
            )
            paths = {one.tinker_path for one in found.checkpoints}
        return paths >= {saved.state, saved.sampler}

    async def delete(self, path: str) -> None:
        """Delete saved weights; those that are not there are no error."""
        with suppress(_MissingError):
            await ask(
                f"delete {path!r}", lambda: self._rest().delete_checkpoint_from_tinker_path(path)
            )

    async def sampler(self, base_model: str, path: str | None) -> tinker.SamplingClient:
        """What answers, with saved weights or (None) the base model's; from any event loop."""
        base = None if path else base_model
        return await ask(
            f"sample from {path or base_model!r}",
            lambda: self._service.create_sampling_client(path, base),
        )

    async def close(self, status: str) -> None:
        """End the session, or leave it after a while: Tinker ends it when nothing is heard of it.

        Tinker's SDK waits for ever if a heartbeat was under way.
        """
        ended: Any = status
        with suppress(AglError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await ask("end the session", lambda: self._service.close(ended))


async def ask(doing: str, call: Callable[[], Awaitable[T]]) -> T:
    """What a call of the SDK comes to; the call itself may open connections, and so block.

    Args:
        doing: What is tried, for the message.

    Raises:
        ConfigError: Key, billing or model will not do.
        RemoteRefusalError: Tinker refused or failed.
    """
    try:
        return await (await asyncio.to_thread(call))
    except Exception as error:
        raise _refusal(doing, error) from None


def _refusal(doing: str, error: BaseException) -> AglError:
    said = hide(str(getattr(error, "message", "") or error))
    status = status_of(error) or _status_in(said)
    what = f"Tinker: could not {doing}: {f'{status}: ' if status else ''}{said}"
    if status not in _ADVICE and type(error) is tinker.TinkerError:
        return ConfigError(what)
    kind, advice = _ADVICE.get(status, _OTHERWISE)
    return kind(f"{what}. {advice}")


async def sample(
    client: tinker.SamplingClient,
    prompt_token_ids: list[int],
    num_samples: int,
    parameters: dict[str, Any],
) -> list[types.SampledSequence]:
    """Answers to a prompt; each with its tokens, the one that ended it included.

    Args:
        parameters: Of ``tinker.SamplingParams``.

    Raises:
        ConfigError: The key is not accepted.
        RemoteRefusalError: Tinker refused or failed.
    """
    prompt = types.ModelInput.from_ints(prompt_token_ids)
    sampling = types.SamplingParams(**parameters)
    answer = await ask("sample", lambda: client.sample(prompt, num_samples, sampling))
    return list(answer.sequences)


def _status_in(message: str) -> int | None:
    """The SDK puts the status of an answer that it waited for into the text alone."""
    _, found, rest = message.partition(" with status ")
    return int(rest[:3]) if found and rest[:3].isdigit() else None
