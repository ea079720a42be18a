"""JSON that an agent or a model wrote."""

import json

import pytest

from agl.utils.json_values import DEEPEST_JSON, parse_json
from agl.utils.otel import DEEPEST_KEY, from_attributes


def nested(levels: int, unit: str = '{"a": [', end: str = "]}") -> str:
    return unit * (levels // 2) + "1" + end * (levels // 2)


def test_json_is_read():
    for text in ('{"a": [1, null]}', "1.5", '"x"', nested(DEEPEST_JSON)):
        assert parse_json(text) == json.loads(text)
    many = json.dumps([{"token": "[{"}] * 1000)  # wide, and not deep
    assert parse_json(many) == json.loads(many)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        nested(100_000),
        nested(DEEPEST_JSON + 2),
        "[1",
        "",
        5,
        None,
    ],
)
def test_what_is_no_json_or_too_deep_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"nested deeper than 200|Expecting|expected JSON text"):
        parse_json(text)


def test_a_key_of_very_many_names_is_a_value_error():
    with pytest.raises(ValueError, match="more than 200 names in its key"):
        from_attributes({"a" + ".0" * (DEEPEST_KEY + 1): 1})
