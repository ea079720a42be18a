"""Rollouts made by hand, as the tests of the library have them."""

from tests.libs.learning.rollouts_by_hand import collected, ended

__all__ = ["collected", "ended"]
