"""The reference pages that people write list exactly what the code has."""

import asyncio
import dataclasses
import inspect
import json
import re
from enum import StrEnum
from pathlib import Path
from typing import get_args
from urllib.request import urlopen

from tests.stores import served

from agl import errors, semconv
from agl.env import LightningEnvVar
from agl.types import Failure
from agl_records.types import EXCLUSION_REASONS
from agl_runs.config.file import RunConfig

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def rows(page: str, pattern: str) -> list[tuple[str, ...]]:
    text = (REFERENCE / page).read_text()
    return re.findall(rf"^\| {pattern} \|", text, re.M)


def test_every_environment_variable_has_a_row():
    assert set(rows("environment.md", "`(AGL_[A-Z_]+)`")) == {v.value for v in LightningEnvVar}


def test_every_error_has_a_row_with_its_bases():
    found = {
        (name, cls.__bases__[0].__name__, cls.__bases__[1].__name__ if cls.__bases__[1:] else "")
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if cls is not errors.AglError
    }
    pattern = r"`(\w+Error)` \| `(\w+)` \|(?: `(\w+)`)?"
    assert set(rows("errors.md", pattern)) == found


def test_every_span_name_and_attribute_has_a_row():
    names = {
        (name, value)
        for name, value in vars(semconv).items()
        if name.isupper() and isinstance(value, str)
    }
    for _, enum in inspect.getmembers(semconv, inspect.isclass):
        if issubclass(enum, StrEnum) and enum is not StrEnum:
            names |= {(member.name, member.value) for member in enum}
    assert set(rows("semconv.md", "`([A-Z_]+)` \\| `([a-z_.]+)`")) == names


def test_every_key_of_the_configuration_file_has_a_row():
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    assert set(rows("config-file.md", "`([a-z_]+)`")) == fields


def test_every_reason_and_boundary_has_a_row():
    table = rows("../explanation/learning-data.md", r"`([a-z_]+)` \| [a-z, ]+ \| (.+?)")
    said = {reason: because.replace("`", "") for reason, because in table}
    assert said == EXCLUSION_REASONS
    text = (REFERENCE / "errors.md").read_text().partition("## Failures of attempts")[2]
    boundaries = re.findall(r"`([a-z]+)`(?=.*\|.*\|)", text)
    assert set(boundaries) == set(get_args(Failure.model_fields["boundary"].annotation))


async def test_every_route_of_the_store_server_has_a_row():
    async with served(open=True) as (server, _):
        with await asyncio.to_thread(urlopen, f"{server.endpoint}/openapi.json") as answer:
            paths = json.load(answer)["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert set(rows("wire.md", r"`(GET|POST) (/[^\s`]*)`")) == routes
