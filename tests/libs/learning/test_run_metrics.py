"""Which metrics get a picture, and of which model."""

from agl_learning.reports.run_metrics import RunMetrics


def test_each_of_several_models_has_its_own():
    names = ["val/calls/trained", "val/entropy", "calls/trained", "time/step", "judge/entropy"]
    names += [
        f"{model}/{name}" for model in ("one", "o/2") for name in ("entropy", "calls/trained")
    ]
    assert dict(RunMetrics([{"step": 1, **dict.fromkeys(names, 1.0)}]).drawn()) == {
        "one/entropy": "Entropy, nats per token: one",
        "o/2/entropy": "Entropy, nats per token: o/2",
        "time/step": "Seconds per step",
    }


def test_one_model_has_them_without_a_name():
    assert [*RunMetrics([{"step": 1, "kl": 1, "entropy": 1}]).drawn()] == [
        ("entropy", "Entropy, nats per token"),
        ("kl", "KL to the reference, nats per token"),
    ]
