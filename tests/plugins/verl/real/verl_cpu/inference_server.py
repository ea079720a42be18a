"""An inference server for tests: ``transformers`` in a Ray actor, with the face of verl's vLLM one.

So a run on the CPU takes verl's own way through ``LLMServerClient``: token ids in, token ids with
log-probabilities out, weight versions, calls that are cut off at a weight update and resumed by the
client (``stop_reason: aborted``), and sleep while the trainer has the device.

Stricter than vLLM where that finds mistakes: weights that are missing or unknown are an error, and
so is a call while the server sleeps (on a GPU its weights would be gone), or a sampling parameter
that it does not implement.

Imports no verl: its process starts in half the time.
"""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import torch

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "min_p": (0, 0.0, None),
    "top_p": (1, 1.0, None),
    "top_k": (-1, 0, None),
    "repetition_penalty": (1, 1.0, None),
    "presence_penalty": (0, 0.0, None),
    "frequency_penalty": (0, 0.0, None),
    "min_tokens": (0, None),
    "skip_special_tokens": (True, False),
    "detokenize": (True, False),
}
"""Parameters that are not implemented, and the values at which that makes no difference."""


@dataclass(frozen=True)
class Sampling:
    """What to sample and when to stop."""

    max_tokens: int
    temperature: float = 1.0
    logprobs: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    @classmethod
    def parse(cls, params: dict[str, Any], default_max_tokens: int, room: int) -> "Sampling":
        """Read verl's sampling parameters, which are vLLM's with two names for the length."""
        given = {name: value for name, value in params.items() if value is not None}
        for name, neutral in NEUTRAL.items():
            if name in given and given.pop(name) not in neutral:
                raise ValueError(
                    f"sampling parameter {name}={params[name]!r}: the inference server for tests "
                    f"implements only {neutral[0]!r}"
                )
        if room < 1:
            raise ValueError(f"the prompt leaves no room: {room} tokens; expected at least 1")
        length = given.pop("max_new_tokens", default_max_tokens)
        length = given.pop("max_tokens", length)
        return cls(
            max_tokens=max(1, min(int(length), room)),
            logprobs=given.pop("logprobs", False) is not False,  # vLLM's 0: of the sampled tokens
            stop_token_ids=tuple(given.pop("stop_token_ids", ())),
            **given,
        )


def sample_token(logits_V: torch.Tensor, sampling: Sampling, generator: torch.Generator | None):
    """One token, and its log-probability under what it was drawn from.

    At temperature 0 the likeliest token is taken, with its log-probability at temperature 1.
    """
    if not sampling.temperature:
        logp_V = torch.log_softmax(logits_V, -1)
        token = int(logp_V.argmax())
        return token, float(logp_V[token])
    logp_V = torch.log_softmax(logits_V / sampling.temperature, -1)
    token = int(torch.multinomial(logp_V.exp(), 1, generator=generator))
    return token, float(logp_V[token])


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Single precision, in memory of its own; on the CPU ``.cpu()`` would alias the live one."""
    return tensor.detach().to(device="cpu", dtype=torch.float32, copy=True).contiguous()


@dataclass
class Sampled:
    """An answer, with the fields of verl's ``TokenOutput``, which its clients read."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str
    extra_fields: dict[str, Any]
    routed_experts: None = None
    num_preempted: None = None


class InferenceServer:
    """The server, a Ray actor."""

    def __init__(self, model_path: str, *, response_length: int, max_model_len: int | None = None):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.response_length = response_length
        self.max_model_len = max_model_len or self.model.config.max_position_embeddings
        self.version: int | None = None
        self.asleep = False
        self._lock = threading.Lock()  # one forward, or one weight update, at a time
        self._stopping = threading.Event()
        self._rejecting = False
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running = 0

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
        **other: Any,
    ) -> Sampled:
        """Sample a response."""
        unknown = [name for name, value in other.items() if value is not None]
        if image_data is not None or video_data is not None or unknown:
            raise ValueError(
                f"call {request_id}: the inference server for tests takes text only; got "
                f"{unknown or 'images or videos'}"
            )
        sampling = Sampling.parse(
            sampling_params, self.response_length, self.max_model_len - len(prompt_ids)
        )
        if not self._open.is_set() and self._rejecting:
            return Sampled([], [], "aborted", {"global_steps": self.version})
        await self._open.wait()
        if self.asleep:
            raise RuntimeError(
                f"call {request_id} while the inference server sleeps: the trainer has the device. "
                f"In the mode 'sync' no agent may call outside of its rollout"
            )
        self._running += 1
        self._idle.clear()
        version = self.version  # cannot change while a call runs
        try:
            tokens, logprobs, reason = await asyncio.to_thread(
                self._sample, list(prompt_ids), sampling
            )
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        given = logprobs if sampling.logprobs else None
        return Sampled(tokens, given, reason, {"global_steps": version})

    @torch.no_grad()
    def _sample(self, prompt_ids: list[int], sampling: Sampling):
        generator = None
        if sampling.seed is not None:
            generator = torch.Generator().manual_seed(sampling.seed)
        ends = set(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends.add(self.model.config.eos_token_id)
        cache, new = None, torch.tensor([prompt_ids])
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < sampling.max_tokens:
            if self._stopping.is_set():
                return tokens, logprobs, "aborted"
            with self._lock:
                out = self.model(input_ids=new, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            token, logprob = sample_token(out.logits[0, -1].float(), sampling, generator)
            tokens.append(token)
            logprobs.append(logprob)
            if token in ends:
                break
            new = torch.tensor([[token]])
        return tokens, logprobs, "completed"

    async def set_weights(self, state: dict[str, torch.Tensor], version: int | None) -> None:
        """Take new weights; calls in flight would go on with others than they began with."""
        if self._running:
            raise RuntimeError(f"weights of version {version}: {self._running} calls are in flight")
        with self._lock:
            missing, unknown = self.model.load_state_dict(state, strict=False)
        if missing or unknown:
            raise RuntimeError(
                f"weights of version {version} do not fit the model: missing {list(missing)}, "
                f"unknown {list(unknown)}"
            )
        self.version = version

    async def get_version(self) -> int | None:
        return self.version

    # What verl calls on a server at weight updates.

    async def sleep(self) -> None:
        await self._end_calls()
        self.asleep = True
        self._stopping.clear()

    async def wake_up(self) -> None:
        self.asleep = False

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        self._rejecting = reject_request
        self._open.clear()
        await self._end_calls()

    async def resume_generation(self) -> None:
        self._rejecting = False
        self._stopping.clear()
        self._open.set()

    async def _end_calls(self) -> None:
        self._stopping.set()
        await self._idle.wait()

    async def _nothing(self, **_: Any) -> None:
        """What a GPU would need."""

    clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing
