"""Tinker, as far as a run needs it: a model that is trained, saved, and sampled from.

Everything goes through Tinker's own SDK, which waits for its queues and tries again by itself when
the service is busy or away.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agl.errors import AglError, ConfigError, install_line
from agl_learning.remote import RemoteRefusalError, hide, status_of
from agl_tinker.data import Loss, logprob_gap, shifted

logger = logging.getLogger("agl.tinker")


@dataclass(frozen=True)
class Sampled:
    """One answer."""

    token_ids: list[int]
    """Sampled, the token that ended it included."""
    logprobs: list[float]
    finish_reason: str
    """``stop`` or ``length``."""


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
        try:
            import tinker
        except ImportError as error:
            raise ConfigError(
                f"algorithm 'tinker' (plugin 'agl-tinker') needs {error.name!r}, which is not "
                f"installed. Run: {install_line('agl-tinker')}"
            ) from None
        import os

        self._tinker: Any = tinker
        key = api_key or os.environ.get("TINKER_API_KEY")
        self.secrets = [key] if key else []
        self._options: dict[str, Any] = {"base_url": base_url, "api_key": api_key}
        self._service: Any = tinker.ServiceClient(
            user_metadata={"agl": label}, display_name=label, **self._options
        )
        self._trainer: Any = None
        self.state: str | None = None
        """Whose weights the trainer has; None for a new one or none."""

    async def open(self, base_model: str) -> int | None:
        """See whether the key works and the model is there.

        Returns:
            How many tokens the model takes; None where Tinker does not say.

        Raises:
            ConfigError: Key or model are not known.
        """
        rest = await self._blocking(
            "open a session", lambda: self._tinker.RestClient(**self._options)
        )
        found = await self._ask("list the models", rest.get_server_capabilities)
        models = {one.model_name: one for one in found.supported_models}
        if base_model not in models:
            known = ", ".join(sorted(name for name in models if name))
            raise ConfigError(f"tinker: there is no model {base_model!r}; there are: {known}")
        return models[base_model].max_context_length

    async def begin(self, base_model: str, rank: int, seed: int) -> None:
        """A new adapter to train."""
        self._trainer = await self._blocking(
            f"make an adapter of {base_model!r}",
            lambda: self._service.create_lora_training_client(
                base_model=base_model, rank=rank, seed=seed
            ).result(),
        )
        self.state = None

    async def resume(self, state: str) -> None:
        """Train on from saved weights, with their optimiser."""
        if self.state == state:
            return
        self._trainer = await self._blocking(
            f"load {state!r}",
            lambda: self._service.create_training_client_from_state_with_optimizer(state).result(),
        )
        self.state = state

    async def step(
        self, examples: Sequence[dict[str, Any]], loss: Loss, adam: dict[str, float]
    ) -> dict[str, float | None]:
        """One gradient step.

        Args:
            examples: Of ``tinker_data.example_of_row``.
            loss: Which.
            adam: Of ``tinker.AdamParams``.

        Returns:
            Tinker's metrics, and ``logprob_gap`` (see ``tinker_data``).
        """
        types = self._tinker.types
        data: list[Any] = []
        for example in examples:
            tokens, inputs = shifted(example, loss)
            data.append(
                types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)
            )
        self.state = None
        # The optimiser's step is sent before the first answer is there, as Tinker advises.
        learned = self._trainer.forward_backward(data, loss)
        stepped = self._trainer.optim_step(types.AdamParams(**adam))
        output = await self._ask("train", lambda: learned)
        await self._ask("take a step of the optimiser", lambda: stepped)
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
        state = await self._ask(
            f"save {name!r}", lambda: self._trainer.save_state(name, overwrite=True)
        )
        sampler = await self._ask(
            f"save {name!r} for sampling", lambda: self._trainer.save_weights_for_sampler(name)
        )
        self.state = state.path
        return Saved(state.path, sampler.path)

    async def delete(self, path: str) -> None:
        """Delete saved weights; those that are not there are no error."""
        rest = await self._blocking("open", lambda: self._tinker.RestClient(**self._options))
        with suppress(_MissingError):
            await self._ask(
                f"delete {path!r}", lambda: rest.delete_checkpoint_from_tinker_path(path)
            )

    async def sampler(self, base_model: str, path: str | None) -> "Sampler":
        """What answers, with saved weights or (None) the base model's."""
        given = {"model_path": path} if path else {"base_model": base_model}
        client = await self._blocking(
            f"sample from {path or base_model!r}",
            lambda: self._service.create_sampling_client(**given).result(),
        )
        return Sampler(client, self)

    async def close(self, status: str) -> None:
        """End the session."""
        with suppress(AglError):
            await self._blocking("end the session", lambda: self._service.close(status).result())

    def error(self, doing: str, error: BaseException) -> AglError:
        """The error to raise for one of the SDK."""
        said = hide(str(getattr(error, "message", "") or error), self.secrets)
        status = status_of(error) or _status_in(said)
        what = f"tinker: could not {doing}: {f'{status}: ' if status else ''}{said}"
        if status == 401:
            return ConfigError(
                f"{what}. The key is expired or wrong: give a new TINKER_API_KEY and run again; "
                "what was done so far is kept"
            )
        if status == 402:
            return ConfigError(f"{what}. Set up or top up the account's billing, and run again")
        if status == 403:
            return ConfigError(f"{what}. The key may not do that; check its project")
        if status == 404:
            return _MissingError(f"{what}. It is not there, or was deleted")
        if isinstance(error, self._tinker.TinkerError) and type(error) is self._tinker.TinkerError:
            return ConfigError(what)
        if status == 429:
            return RemoteRefusalError(f"{what}. The service is too busy; run again later")
        return RemoteRefusalError(f"{what}. Run again: it goes on where it was")

    async def _blocking(self, doing: str, ask: Callable[[], Any]) -> Any:
        try:
            return await asyncio.to_thread(ask)
        except Exception as error:
            raise self.error(doing, error) from None

    async def _ask(self, doing: str, ask: Callable[[], Any]) -> Any:
        try:
            return await ask()
        except Exception as error:
            raise self.error(doing, error) from None


class Sampler:
    """Answers from one version of the weights; usable from any event loop.

    Args:
        client: Tinker's.
        service: For its errors.
    """

    def __init__(self, client: Any, service: TinkerService) -> None:
        self._client, self._service = client, service

    async def sample(
        self, prompt_token_ids: list[int], num_samples: int, parameters: dict[str, Any]
    ) -> list[Sampled]:
        """Answers to a prompt.

        Args:
            prompt_token_ids: The whole prompt.
            num_samples: How many.
            parameters: Of ``tinker.SamplingParams``.

        Raises:
            ConfigError: The key is not accepted.
            RemoteRefusalError: Tinker refused or failed.
        """
        types = self._service._tinker.types
        try:
            answer = await self._client.sample(
                prompt=types.ModelInput.from_ints(prompt_token_ids),
                num_samples=num_samples,
                sampling_params=types.SamplingParams(**parameters),
            )
        except Exception as error:
            raise self._service.error("sample", error) from None
        return [
            Sampled(one.tokens, one.logprobs or [], one.stop_reason) for one in answer.sequences
        ]

    def tokenizer(self) -> Any:
        """The model's, from the hub."""
        return self._client.get_tokenizer()


class _MissingError(ConfigError):
    """It is not at Tinker."""


def _status_in(message: str) -> int | None:
    """The SDK puts the status of an answer that it waited for into the text alone."""
    _, found, rest = message.partition(" with status ")
    return int(rest[:3]) if found and rest[:3].isdigit() else None
