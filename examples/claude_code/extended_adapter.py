"""Triplets of the gateway's calls with their whole conversation, as rows of a data set."""

import json
from collections.abc import Sequence
from typing import Any

import agl


class ExtendedLlmProxyTraceToTriplet(agl.TracerTraceToTriplet):
    """Each triplet's metadata has ``messages`` as well: the prompt and the answer."""

    def adapt(self, source: Sequence[Any], /) -> list[agl.Triplet]:
        """See ``TracerTraceToTriplet``, which keeps the messages beside the token ids."""
        return [
            triplet.model_copy(
                update={
                    "metadata": {
                        **triplet.metadata,
                        "messages": [
                            *triplet.prompt["raw_content"],
                            *triplet.response["raw_content"],
                        ],
                    }
                }
            )
            for triplet in super().adapt(source)
        ]


def rows_of(triplets: Sequence[agl.Triplet], reward: float | None) -> list[dict[str, Any]]:
    """Rows for a data set, one for each call.

    Args:
        triplets: Of ``ExtendedLlmProxyTraceToTriplet``.
        reward: Of the whole rollout.
    """
    return [
        {
            # As text: a column of a data set has one type, and a message's content two.
            "messages": json.dumps(triplet.metadata["messages"], ensure_ascii=False),
            "prompt_ids": triplet.prompt["token_ids"],
            "response_ids": triplet.response["token_ids"],
            "logprobs": [one["logprob"] for one in triplet.response.get("logprobs", [])],
            "response_id": triplet.metadata["response_id"],
            "reward": reward,
        }
        for triplet in triplets
    ]
