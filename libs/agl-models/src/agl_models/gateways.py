"""What trainers ask of a gateway: their model beside the user's, and answers drawn as recorded."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from agl.algorithm.gateway import Gateway, ModelConfig
from agl.store.base import LightningStore

WHOLE_SOFTMAX: Mapping[str, Any] = {
    "top_p": 1.0,
    **dict.fromkeys(
        ("top_k", "min_p", "top_a", "typical_p", "epsilon_cutoff", "eta_cutoff", "min_tokens")
    ),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "repetition_penalty")),
    **dict.fromkeys(("length_penalty", "logit_bias", "bad_words", "allowed_token_ids")),
    **dict.fromkeys(("ignore_eos", "use_beam_search", "best_of")),
}
"""Forced parameters, besides a temperature, of a model that is trained on recorded
log-probabilities: an answer must be drawn from the distribution that they are of."""


@contextlib.asynccontextmanager
async def model_served(
    gateway: Gateway, entry: ModelConfig, store: LightningStore
) -> AsyncGenerator[None]:
    """Have a gateway serve one model more while this lasts, and leave it as it was.

    One that ran before goes on running; one that did not is started, and stopped in the end.

    Args:
        gateway: Of the user or the trainer.
        entry: The model.
        store: Where calls are recorded.

    Raises:
        ConfigError: The entry is wrong, or a model of this name is served already; that one stays.
    """
    gateway.set_store(store)
    gateway.add_model(entry)
    own = not gateway.is_running()
    try:
        if own:
            await gateway.start()
        yield
    finally:
        gateway.remove_model(entry["model_name"])
        if own and gateway.is_running():
            await gateway.stop()
