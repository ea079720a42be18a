"""Every algorithm that is installed, made in Python with an option that it does not have."""

import inspect

import pytest

from agl.errors import UnknownArgumentError
from agl.plugins.registry import load, names_in
from agl_learning import OnlineTraining


@pytest.mark.parametrize("name", names_in("agl.algorithms"))
def test_misspelt_option_is_refused_with_the_nearest(name):
    algorithm = load("agl.algorithms", name)
    option = max(inspect.signature(algorithm).parameters, key=len)
    expected = f"{algorithm.__name__}: unknown option '{option}x'. Did you mean '{option}'?"
    with pytest.raises(UnknownArgumentError) as found:
        algorithm(**{f"{option}x": 1})
    assert str(found.value) == expected


def test_misspelt_option_of_a_group_is_refused_with_the_nearest():
    evaluation = OnlineTraining.__dataclass_fields__["evaluation"].default
    with pytest.raises(UnknownArgumentError, match=r"option 'evry'. Did you mean 'every'\?"):
        type(evaluation)(evry=2)
