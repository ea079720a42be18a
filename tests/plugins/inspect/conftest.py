"""Commands about the store ``s.db`` in the test's own folder: what they say, ending with a code."""

from typing import Any

import pytest


def _command_of_store(name: str) -> Any:
    @pytest.fixture(name=name)
    def command(agl, here):
        def call(*arguments: str, code: int = 0) -> str:
            done, out, err = agl(name, *arguments, "--path", "s.db")
            assert done == code, err
            return out or err

        return call

    return command


diff, explain, show = map(_command_of_store, ("diff", "explain", "show"))
