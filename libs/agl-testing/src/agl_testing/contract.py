"""What all contract suites share: how they make the component that they test.

An author of an adapter writes one class; the suites of other kinds are named after those:

    from agl_testing.adapter_contract import AdapterContract

    class TestMyAdapter(AdapterContract):
        component = MyAdapter

A fixture of that class, here ``adapter``, may make it otherwise. Tests that are coroutines need
pytest-asyncio, in any mode.
"""

from typing import Any, ClassVar

from agl.plugins.build import build_component
from agl.plugins.registry import GROUPS


class Contract:
    """A suite; its subclass in a module of yours names the ``component``."""

    kind: ClassVar[str]
    expected_type: ClassVar[type] = object
    component: ClassVar[Any] = None
    """What is tested: its class, its name, or a dict of ``type`` and options as in a file."""

    def build(self, **defaults: Any) -> Any:
        """A new one; ``defaults`` are options that the suite needs, if the component has them."""
        return build_component(
            type(self).component,
            group=GROUPS[self.kind],
            expected_type=self.expected_type,
            optional_defaults=defaults,
            default={},
            where=f"{type(self).__name__}.component",
        )
