"""Rewards by name, for agents without a grader of their own."""

from typing import Any

from agl.errors import ConfigError


class ExactMatch:
    """1 where the agent's answer is the one that the task keeps from it, else 0.

    Args:
        key: The key of the answer in ``private``.
        ignore_case: Whether capitals count as small letters.
    """

    def __init__(self, key: str = "answer", ignore_case: bool = False) -> None:
        self._key, self._ignore_case = key, ignore_case

    def __call__(self, task: Any, private: Any, result: Any) -> float:
        """The reward; blanks around texts do not count.

        Raises:
            ConfigError: The task has no answer under the key.
        """
        if not isinstance(private, dict) or self._key not in private:
            raise ConfigError(f"exact_match: the task has no {self._key!r} under 'private'")
        return float(self._plain(result) == self._plain(private[self._key]))

    def _plain(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        return value.strip().lower() if self._ignore_case else value.strip()
