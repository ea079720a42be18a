"""The contract of an algorithm."""

from typing import Any

from agentlightning._names import refusing
from agl import Algorithm as _Algorithm


@refusing({"get_store() has the tasks and their results; 0.1's server has clients": "get_client"})
class Algorithm(_Algorithm):
    """agl's; as in 0.3, one without ``run`` can be made. Every algorithm of agl is one, too."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return _Algorithm in other.__mro__ if cls is Algorithm else NotImplemented

    def run(self, train_dataset: Any = None, val_dataset: Any = None) -> Any:
        """Do the whole training; see ``agl.Algorithm``."""
        kind = type(self).__name__
        raise NotImplementedError(f"{kind} has no run(train_dataset, val_dataset); write it")
