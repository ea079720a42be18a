"""Metrics that get a picture of their own, in the page and in the report, and what they are."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

_PLOTTED: Final = {
    "reward/std": "Spread of rewards in a step, standard deviation",
    "failures/bias": "Shift of rewards by what failures left out, in their deviations",
    "entropy": "Entropy, nats per token",
    "kl": "KL to the reference, nats per token",
    "grad_norm": "Gradient norm, before it is cut",
    "loss/total": "Loss",
    "clip_fraction": "Share of the weight held by a bound",
    "logprob_gap": "Recorded log-probabilities against the model's, nats",
    "version_lag": "Staleness, versions behind",
    "time/step": "Seconds per step",
    "cost": "Cost of training per step",
}
"""Metric -> what it is, with its unit."""
_OF_A_MODEL: Final = "/calls/trained"
"""Each of several models has it after its name; so has ``val``, which is none."""


def plotted(series: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of metrics that get a picture, each with its title.

    Where several models are trained, each has metrics of its own after its name.

    Args:
        series: Name of a metric -> anything.
    """
    models = [one.removesuffix(_OF_A_MODEL) for one in series if one.endswith(_OF_A_MODEL)]
    for metric, title in _PLOTTED.items():
        if metric in series:
            yield metric, title
        for model in models:
            if model != "val" and (name := f"{model}/{metric}") in series:
                yield name, f"{title}: {model}"
