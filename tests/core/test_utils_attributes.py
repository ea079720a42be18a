import enum
import math
from dataclasses import dataclass

import numpy
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import agl
from agl.utils.otel import attributes_under, from_attributes, to_attribute_value, to_attributes


class Color(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int


NESTED = {"a": {"b": {"c": 1}}, "d": [1, 2], "e": [1, "x"], "f": [{"g": True}], "h": []}
FLAT = {"a.b.c": 1, "d": [1, 2], "e.0": 1, "e.1": "x", "f.0.g": True, "h": []}


@pytest.mark.parametrize(
    ("nested", "options", "flat"),
    [
        (NESTED, {}, FLAT),
        ({"a": 1, "b": {"c": 2}}, {"prefix": "p.q"}, {"p.q.a": 1, "p.q.b.c": 2}),
        ({"a": [True, 1]}, {}, {"a.0": True, "a.1": 1}),  # not of one type
    ],
)
def test_nested_data_gets_dotted_keys(nested, options, flat):
    assert to_attributes(nested, **options) == flat


def test_two_values_under_one_key_are_refused():
    with pytest.raises(ValueError, match=r"'a\.b' is given twice"):
        to_attributes({"a.b": 1, "a": {"b": 2}})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "null"),
        (Color.RED, "red"),
        (agl.LightningEnvVar.AGL_CURRENT_ROLE, "AGL_CURRENT_ROLE"),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (2**63, str(2**63)),
        (-(2**63), -(2**63)),
        (Point(1), '{"x": 1}'),
        ({1}, "[1]"),
        (agl.RewardDimension(name="a", value=1.0), '{"name": "a", "value": 1.0}'),
    ],
)
def test_values_become_what_a_span_can_hold(value, expected):
    got = to_attribute_value(value)
    assert got == expected
    assert type(got) is type(expected)


def test_object_without_json_becomes_its_text():
    class Thing:
        def __str__(self) -> str:
            return "a thing"

    assert to_attribute_value(Thing()) == '"a thing"'


@pytest.mark.parametrize("value", [None, math.nan, 2**63, object(), Point(1), b"x"])
def test_strict_refuses_what_a_span_cannot_hold(value):
    with pytest.raises(ValueError, match=r"attribute 'a\.b': got"):
        to_attributes({"a": {"b": value}}, strict=True)


keys = st.text(st.characters(codec="ascii", exclude_characters="."), min_size=1, max_size=4)
leaves = st.one_of(st.text(max_size=5), st.booleans(), st.integers(-(2**63), 2**63 - 1))


# On a busy machine drawing the first examples is slow.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        keys.filter(lambda key: not key.isdigit()),
        st.recursive(
            leaves,
            lambda inner: st.dictionaries(
                keys.filter(lambda key: not key.isdigit()), inner, min_size=1, max_size=3
            ),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_reading_undoes_writing(nested):
    assert from_attributes(to_attributes(nested)) == nested


def test_reading_makes_lists_of_counted_keys_only():
    flat = {"a.0.b": 1, "a.1.b": 2, "c.1": 3, "d.0": 4, "d.x": 5}
    nested = {"a": [{"b": 1}, {"b": 2}], "c": {"1": 3}, "d": {"0": 4, "x": 5}}
    assert from_attributes(flat) == nested


@pytest.mark.parametrize("flat", [{"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}, {"a": {}, "a.b": 1}])
def test_reading_refuses_a_key_that_is_a_prefix(flat):
    with pytest.raises(ValueError, match="prefix"):
        from_attributes(flat)


def test_attributes_under_a_prefix_lose_it():
    attributes = {"a.b": 1, "a.c.d": 2, "ab.c": 3, "a": 4}
    assert attributes_under(attributes, "a") == {"b": 1, "c.d": 2, "": 4}
