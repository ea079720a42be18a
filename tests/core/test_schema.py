"""The constructor is the schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

import pytest
from pydantic import BaseModel, Field

from agl.errors import ConfigError
from agl.plugins.schema import NO_DEFAULT, readable_type, schema_of, validate

if TYPE_CHECKING:
    from only.checkers.see import Invisible


class Thing(Protocol):
    def act(self) -> None: ...


@dataclass
class Inner:
    a: int
    b: list[str] = field(default_factory=list)


class Model(BaseModel):
    lr: float = Field(default=0.1, gt=0)
    inner: Inner | None = None


class Base:
    """A base.

    Args:
        shared: Said by the
            base.
        n: Overridden below.
    """

    def __init__(self, shared: int = 1, n: int = 0) -> None: ...


class Learn(Base):
    """A subclass.

    Args:
        n: How many.
    """

    def __init__(
        self,
        n: int,
        model: Model | None = None,
        mode: Literal["a", "b"] = "a",
        many: list[Inner] | None = None,
        rates: dict[str, float] | None = None,
        flag: bool | None = None,
        api_key: int = 0,
        size: Annotated[int, Field(ge=1)] | Literal["auto"] | None = "auto",
        part: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | None = None,
        thing: Thing | None = None,
        hidden: Invisible | None = None,
        *,
        shared: int = 1,
    ) -> None: ...


class Open:
    def __init__(self, n: int = 1, **others: Any) -> None: ...


def test_options_have_names_types_defaults_and_docs():
    options = {option.name: option for option in schema_of(Learn).options}
    assert list(options) == [
        *("n", "model", "mode", "many", "rates", "flag", "api_key", "size", "part"),
        *("thing", "hidden", "shared"),
    ]
    n, mode, shared = options["n"], options["mode"], options["shared"]
    assert (n.type, n.required, n.default, n.doc) == ("int", True, NO_DEFAULT, "How many.")
    assert (mode.type, mode.required, mode.default) == ('"a" | "b"', False, "a")
    assert (shared.doc, shared.default) == ("Said by the base.", 1)
    assert options["model"].type == "Model | None"
    assert options["hidden"].type == "Invisible | None"


def test_class_without_a_constructor_has_no_options():
    class Bare:
        pass

    assert schema_of(Bare).options == ()
    with pytest.raises(ConfigError, match=r"x: unknown key\. There are no options"):
        validate(Bare, {"x": 1}, "")


def test_dataclass_fields_are_documented_by_the_text_under_them():
    from agl_runs.config.file import RunConfig

    options = {option.name: option for option in schema_of(RunConfig).options}
    assert not options["agent"].required
    assert options["train"].doc.startswith("File of tasks to learn from")


@dataclass(kw_only=True)
class Base:
    """Shared.

    Args:
        seed: Of draws.
        steps: How many.
    """

    seed: int = 0
    steps: int = 10


@dataclass(kw_only=True)
class Derived(Base):
    """Special.

    Args:
        model: What learns.
        beta: How bold.
    """

    model: str = field(kw_only=False)
    beta: float = 0.1
    steps: int = 20


def test_a_dataclass_has_its_own_options_before_those_of_its_base():
    options = {option.name: option for option in schema_of(Derived).options}
    assert list(options) == ["model", "steps", "beta", "seed"]
    assert (options["steps"].doc, options["steps"].default) == ("How many.", 20)
    assert options["model"].required
    assert validate(Derived, {"model": "m", "seed": "3"}, "") == {"model": "m", "seed": 3}
    with pytest.raises(ConfigError, match="Did you mean 'beta'"):
        validate(Derived, {"model": "m", "betta": 1}, "")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"n": "4"}, {"n": 4}),
        ({"n": 4.0}, {"n": 4}),
        ({"n": 1, "flag": "yes"}, {"n": 1, "flag": True}),
        ({"n": 1, "rates": {"x": "1e-6"}}, {"n": 1, "rates": {"x": 1e-6}}),
        ({"n": 1, "model": {"lr": 1}}, {"n": 1, "model": Model(lr=1.0)}),
        ({"n": 1, "model": Model(lr=2)}, {"n": 1, "model": Model(lr=2)}),
        (
            {"n": 1, "model": {"inner": {"a": 2, "b": ["x"]}}},
            {"n": 1, "model": Model(inner=Inner(2, ["x"]))},
        ),
        ({"n": 1, "many": [{"a": 1}]}, {"n": 1, "many": [Inner(1)]}),
        # What cannot be checked is left to the constructor.
        ({"n": 1, "thing": 5, "hidden": "x"}, {"n": 1, "thing": 5, "hidden": "x"}),
    ],
)
def test_values_are_converted_to_the_annotated_types(values, expected):
    assert validate(Learn, values, "") == expected


ONE = "a number greater than or equal to 1"
PART = "part: expected int | float | None"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": "abc"}, "n: expected int, got 'abc'"),
        ({"n": True}, "n: expected int, got True"),
        ({"n": None}, "n: expected int, got None"),
        ({}, "n: missing (int): How many."),
        ({"m": 1}, "m: unknown key. Known: n, model, mode, many, rates, flag, "),
        ({"shred": 1}, "shred: unknown key. Did you mean 'shared'?"),
        ({"n": 1, "mode": "c"}, "mode: input should be 'a' or 'b'; got 'c'"),
        ({"n": 1, "size": 0}, f'size: expected int | "auto" | None ({ONE}), got 0'),
        ({"n": 1, "part": -0.5}, f"{PART} (a number greater than 0), got -0.5"),
        ({"n": 1, "part": 0}, f"{PART} ({ONE} or greater than 0), got 0"),
        ({"n": 1, "model": 5}, "model: expected Model | None, got 5"),
        ({"n": 1, "model": {"lr": -1}}, "model.lr: input should be greater than 0; got -1"),
        ({"n": 1, "model": {"lrr": 1}}, "model.lrr: unknown key. Did you mean 'lr'?"),
        (
            {"n": 1, "model": {"inner": {"a": 1, "x": []}}},
            "model.inner.x: unknown key. Known: a, b",
        ),
        ({"n": 1, "model": {"inner": {}}}, "model.inner.a: missing"),
        ({"n": 1, "many": [{"a": 1}, {"c": 1}]}, "many.1.c: unknown key. Known: a, b"),
        ({"n": 1, "api_key": "sk-1"}, "api_key: expected int, got ***"),
    ],
)
def test_wrong_options_are_refused_by_their_address(values, message):
    with pytest.raises(ConfigError) as caught:
        validate(Learn, values, "f.yaml: algorithm")
    assert str(caught.value).startswith(f"f.yaml: algorithm.{message}")


def test_constructor_with_kwargs_takes_any_further_key():
    assert schema_of(Open).open
    assert validate(Open, {"n": "2", "other": "x"}, "") == {"n": 2, "other": "x"}


def test_pydantic_model_and_function_have_schemas_too():
    def build(n: int = 1) -> Base:
        """Build.

        Args:
            n: How many.
        """
        return Base(n)

    assert [o.name for o in schema_of(Model).options] == ["lr", "inner"]
    assert [(o.name, o.doc) for o in schema_of(build).options] == [("n", "How many.")]
    assert validate(Model, {"lr": "0.5"}, "") == {"lr": 0.5}


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int | None, "int | None"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Literal["a", 1], '"a" | 1'),
        (Any, "Any"),
        (None, "None"),
    ],
)
def test_types_read_as_one_would_write_them(annotation, text):
    assert readable_type(annotation) == text
