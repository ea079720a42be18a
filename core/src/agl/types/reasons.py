"""Why something trained nothing: a closed set of codes."""

from typing import Literal

ExclusionReason = Literal[
    "no_token_ids",
    "structured_output",
    "no_logprobs",
    "unrecognised_span",
    "model_error",
    "malformed",
    "malformed_message",
    "over_length",
    "agent_not_selected",
    "failed_attempt",
    "superseded_attempt",
    "no_reward",
    "zero_advantage",
    "below_threshold",
    "not_selected",
    "not_paired",
    "rejected",
    "unused_group",
    "not_trained_mode",
    "no_calls",
    "not_run",
    "reward_before_call",
    "superseded_reward",
    "unused_reward",
]
"""Closed set of codes: why a call, a rollout or a reward trained nothing."""

EXCLUSION_REASONS: dict[ExclusionReason, str] = {
    "no_token_ids": "the server returned no token ids",
    "structured_output": "only a parsed object was recorded in the place of sampled tokens",
    "no_logprobs": "the server returned no log-probabilities",
    "unrecognised_span": "a span looks like a model call, and no reader knows its form",
    "model_error": "the call failed",
    "malformed": "what was recorded cannot be",
    "malformed_message": "a message of the call cannot be read: it has no role, say",
    "over_length": "prompt and answer are longer than the limit",
    "agent_not_selected": "another agent made it than those that are trained",
    "failed_attempt": "no attempt of the rollout succeeded",
    "superseded_attempt": "another attempt of the rollout is used",
    "no_reward": "no reward reached it",
    "zero_advantage": "it did exactly as well as what it was compared with",
    "below_threshold": "its reward is below the one that is asked for",
    "not_selected": "only the best were asked for, and others were better or came first",
    "not_paired": "no other rollout answered the same prompt otherwise and with another reward",
    "rejected": "the correction for sampling with other weights rejected it",
    "unused_group": "the algorithm dropped its group, or the run ended first",
    "not_trained_mode": "its rollout was for validation or testing",
    "no_calls": "the rollout succeeded without a recorded model call",
    "not_run": "the rollout ended before any attempt began",
    "reward_before_call": "the reward was given before the first call",
    "superseded_reward": "a later reward of the rollout counts in its place",
    "unused_reward": "the credit rule gave it to no call",
}
"""What each code means, in words that follow "because"."""
