"""Options are refused by the types of their fields, which are also their schema."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from annotated_types import Ge, Len, Lt
from pydantic import Field

from agl.errors import ConfigError
from agl.plugins.schema import schema_of, validate, with_inner
from agl_runs.config.overrides import apply_overrides
from agl_runs.options import (
    AboveZero,
    Count,
    Group,
    Name,
    NotNegative,
    Share,
    check_options,
    pick_options,
)
from agl_runs.secrets import redact

if TYPE_CHECKING:
    from nowhere import Client


def is_pair(owner: str, /, **values: Any) -> None:
    for name, value in values.items():
        if len(value) != 2:
            raise ConfigError(f"{owner}: {name} must be a pair; got {value!r}")


@dataclass(kw_only=True)
class Options:
    rows: Count = 1
    limit: Count | Literal["auto"] | None = None
    rate: NotNegative = 0.0
    clip: AboveZero = 0.2
    part: Share = 1.0
    inside: Annotated[float, Ge(0), Lt(1)] = 0.0
    seed: int = 0
    group: Annotated[int, Ge(2), "one alone is no group"] = 2
    level: Literal["low", "high"] = "low"
    label: Name = "a"
    nickname: Name | None = None
    fast: bool = False
    slow: bool | None = None
    folder: str = "here"
    address: str | None = None
    modules: list[str] | None = None
    numbers: list[int] = field(default_factory=list[int])
    names: dict[str, str] = field(default_factory=dict[str, str])
    rule: str | dict[str, Any] | None = None
    template: str | list[str] | None = None
    pair: Annotated[tuple[int, int], is_pair] = (0, 1)
    either: Annotated[str | list[str], is_pair] = "ab"
    anything: Any = None
    several: int | str = 0
    thing: object = None
    client: "Client | None" = None
    quoted: "Count | None" = None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rows": 0}, "rows must be at least 1; got 0"),
        ({"rows": 1.5}, "rows must be a whole number; got 1.5"),
        ({"rows": True}, "rows must be a whole number; got True"),
        ({"rows": None}, "rows must be a whole number; got None"),
        ({"limit": "3"}, "limit must be a whole number; got '3'; or give 'auto'"),
        ({"rate": -0.1}, "rate must be at least 0; got -0.1"),
        ({"rate": float("nan")}, "rate must be a finite number; got nan"),
        ({"clip": 0}, "clip must be above 0; got 0"),
        ({"part": 1.1}, "part must be above 0 and at most 1; got 1.1"),
        ({"inside": 1}, "inside must be at least 0 and below 1; got 1"),
        ({"seed": "0"}, "seed must be a whole number; got '0'"),
        ({"group": 1}, "group must be at least 2; got 1: one alone is no group"),
        ({"quoted": 0}, "quoted must be at least 1; got 0"),
        ({"level": "middle"}, "level is 'middle'; expected low or high"),
        ({"label": " "}, "label must be a name; got ' '"),
        ({"label": 3}, "label must be a name; got 3"),
        ({"nickname": ""}, "nickname must be a name; got ''"),
        ({"fast": "no"}, "fast must be true or false; got 'no'"),
        ({"fast": 1}, "fast must be true or false; got 1"),
        ({"fast": None}, "fast must be true or false; got None"),
        ({"slow": "yes"}, "slow must be true or false; got 'yes'"),
        ({"folder": 3}, "folder must be a string; got 3"),
        ({"folder": None}, "folder must be a string; got None"),
        ({"address": False}, "address must be a string; got False"),
        ({"modules": "q_proj"}, "modules must be a list of strings; got 'q_proj'"),
        ({"modules": ["q_proj", 1]}, "modules must be a list of strings; got ['q_proj', 1]"),
        ({"numbers": 1}, "numbers must be a list; got 1"),
        ({"names": ["a"]}, "names must be a dict; got ['a']"),
        ({"rule": 1}, "rule must be a string or a dict; got 1"),
        ({"template": [1]}, "template must be a string or a list of strings; got [1]"),
        ({"pair": (1,)}, "pair must be a pair; got (1,)"),
        ({"either": "abc"}, "either must be a pair; got 'abc'"),
    ],
)
def test_what_a_type_does_not_allow_is_refused(given, message):
    with pytest.raises(ConfigError) as caught:
        check_options("Mine", Options(**given))
    assert str(caught.value) == f"Mine: {message}"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"limit": 3, "nickname": "b", "slow": True, "address": Path("a"), "quoted": 1},
        {"limit": "auto", "rate": 1, "part": 1, "level": "high"},
        {"modules": [], "numbers": [1], "names": {"a": "b"}},
        {"modules": ["a"], "rule": "final", "template": ["a", "b"]},
        {"rule": {"type": "final"}, "template": "a", "either": "ab"},
        # What no check can tell: these fields may hold anything.
        {"anything": 1, "several": [], "thing": 3, "client": 3},
    ],
)
def test_what_a_type_allows_passes(given):
    check_options("Mine", Options(**given))


def test_functions_are_called_one_after_the_other():
    seen: list[Any] = []

    def note(owner: str, /, **values: Any) -> None:
        seen.append((owner, values))

    @dataclass
    class Twice:
        pair: Annotated[tuple[int, ...], is_pair, note]

    check_options("Mine", Twice((1, 2)))
    assert seen == [("Mine", {"pair": (1, 2)})]
    with pytest.raises(ConfigError, match="must be a pair"):
        check_options("Mine", Twice((1, 2, 3)))
    assert len(seen) == 1


def test_fields_that_were_inherited_are_read_where_they_were_declared():
    @dataclass(kw_only=True)
    class More(Options):
        bound: Count = 1

    with pytest.raises(ConfigError, match=r"^Mine: quoted must be at least 1"):
        check_options("Mine", More(quoted=0))


def test_options_of_a_part_are_those_of_its_holder_but_for_what_is_given():
    @dataclass
    class Part:
        rows: int
        seed: int
        beta: float = 0.5

    assert pick_options(Part, Options(rows=3, seed=4), seed=5) == Part(rows=3, seed=5, beta=0.5)
    with pytest.raises(TypeError, match="rows"):
        pick_options(Part, object(), seed=5)


@dataclass(kw_only=True)
class WithOthers:
    rate: Annotated[float, Field(gt=0)] = 1.0
    words: Annotated[list[str], Len(1)] = field(default_factory=lambda: ["a"])
    note: Annotated[str, "what it is for"] = ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"rate": 0.0}, "Mine: rate: Input should be greater than 0; got 0.0"),
        ({"words": []}, "Mine: words: List should have at least 1 item"),
    ],
)
def test_limits_of_others_are_checked_by_pydantic(given, why):
    check_options("Mine", WithOthers(rate=2, words=["b"], note="x"))
    with pytest.raises(ConfigError, match=why):
        check_options("Mine", WithOthers(**given))


@dataclass(frozen=True, kw_only=True, repr=False)
class Clip(Group):
    low: Annotated[float, Ge(0), Lt(1)] = 0.2
    high: AboveZero | None = None

    def problem(self) -> str | None:
        return "high is below clip.low" if self.high and self.high < self.low else None


@dataclass(kw_only=True)
class Holder:
    clip: Clip = Clip(high=0.4)
    more: Clip | None = None
    rate: float = 0.1

    def __post_init__(self) -> None:
        check_options("Mine", self)


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 0.2, 0.4),
        ({"clip": {"low": 0.1}}, 0.1, 0.4),  # the rest is the default of the field
        ({"clip": 0.3}, 0.3, 0.4),
        ({"clip": None}, 0.2, 0.4),
        ({"clip": Clip(low=0.1)}, 0.1, None),
    ],
)
def test_a_group_is_given_as_a_dict_a_value_or_itself(given, low, high):
    holder = Holder(**given)
    assert (holder.clip.low, holder.clip.high, holder.more) == (low, high, None)
    checked = validate(Holder, {"clip": {"low": "0.1"}, "more": 0.5}, "a.yaml: algorithm")
    assert checked == {"clip": {"low": 0.1}, "more": {"low": 0.5}}
    assert validate(Holder, {"clip": None}, "a.yaml: algorithm") == {"clip": {}}
    holder = Holder(**checked)
    assert (holder.clip, holder.more) == (Clip(low=0.1, high=0.4), Clip(low=0.5))


def test_a_bare_value_and_a_key_of_its_group_are_overrides_that_go_together():
    values: dict[str, Any] = {"algorithm": {"clip": 0.3}}
    apply_overrides(values, ["algorithm.clip=0.1", "algorithm.clip.high=0.5"])
    checked = validate(Holder, values["algorithm"], "a.yaml: algorithm")
    assert checked == {"clip": {"low": 0.1, "high": 0.5}}
    assert Holder(**values["algorithm"]).clip == Clip(**checked["clip"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.rate=0.1", "algorithm.rate.x=1"],
            "a.yaml: algorithm.rate is 0.1 and has no 'x'",
        ),
        (["algorithm.clip=9", "algorithm.clip.high=0.5"], "algorithm.clip.low: "),
    ],
)
def test_a_bare_value_that_takes_no_keys_is_named_with_them(overrides, message):
    values: dict[str, Any] = {}
    apply_overrides(values, overrides)
    with pytest.raises(ConfigError) as caught:
        validate(Holder, values["algorithm"], "a.yaml: algorithm")
    assert message in str(caught.value)
    assert "''" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"low": 1}, "clip.low must be at least 0 and below 1; got 1"),
        ({"lo": 0.1}, "clip.lo: unknown key. Did you mean 'low'?"),
        ({"low": 0.9}, "clip.high is below clip.low"),
    ],
)
def test_what_is_wrong_in_a_group_is_named_by_its_path(given, message):
    with pytest.raises(ConfigError) as caught:
        Holder(clip=given)
    assert str(caught.value) == f"Mine: {message}"
    with pytest.raises(ConfigError, match=r"^a.yaml: algorithm.clip.lo: unknown key. .*'low'"):
        validate(Holder, {"clip": {"lo": 1}}, "a.yaml: algorithm")
    with pytest.raises(ConfigError, match=r"algorithm\.clip\.low: expected no true or false"):
        validate(Holder, {"clip": {"low": True}}, "a.yaml: algorithm")
    with pytest.raises(ConfigError, match=r"algorithm\.clip: expected low, high, and no true or"):
        validate(Holder, {"clip": True}, "a.yaml: algorithm")


def test_what_is_in_a_group_is_shown_by_its_path_and_kept_as_json():
    shown = {one.name: one for one in with_inner(schema_of(Holder).options)}
    inner = [name for name in shown if name != "rate"]
    assert inner == ["clip", "clip.low", "clip.high", "more", "more.low", "more.high"]
    assert (shown["clip.high"].default, shown["more.high"].default) == (0.4, None)
    assert repr(shown["clip"].default) == "{'high': 0.4}"
    kept = redact(vars(Holder(clip=0.1)))
    assert kept == {"clip": {"low": 0.1, "high": 0.4}, "more": None, "rate": 0.1}
