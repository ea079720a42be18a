"""The adapter ``rows``, as whoever reads a store uses it: by its name."""

from typing import Any

from agl.plugins.build import build_component
from agl_learning.rows import RowsAdapter


def rows_adapter(**options: Any) -> RowsAdapter:
    """The adapter with these of its options.

    Raises:
        PluginError: It is not installed.
    """
    return build_component(
        {"type": "rows", **options}, group="agl.adapters", expected_type=RowsAdapter
    )
