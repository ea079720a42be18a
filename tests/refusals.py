"""What errors say."""

import contextlib
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refused(error: type[Exception], said: str) -> Iterator[None]:
    """What is within raises it, with this text in its one line."""
    with pytest.raises(error) as caught:
        yield
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
