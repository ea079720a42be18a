"""Which models are served: those of the user's list, and those that algorithms add to it."""

from collections.abc import Callable

from agl.algorithm.gateway import ModelConfig
from agl.errors import ConfigError
from agl_gateway.backends import Backends

ModelList = list[ModelConfig]


class Models:
    """Two lists that are served as one; neither side can take away what is the other's.

    Args:
        complete: Adds what has to be served besides, for a replay.
    """

    def __init__(self, complete: Callable[[ModelList], ModelList]) -> None:
        self._complete = complete
        self._listed: ModelList = []
        self._added: dict[str, ModelConfig] = {}
        self.backends = Backends([])
        """Of both lists; another object after each change."""

    def replace(self, model_list: ModelList) -> None:
        """Take another list of the user's.

        Raises:
            ConfigError: It is wrong, or names an added model; the old one stays.
        """
        for number, entry in enumerate(model_list):
            if entry.get("model_name") in self._added:
                raise ConfigError(
                    f"model_list[{number}]: an algorithm serves the model that it trains as "
                    f"{entry['model_name']!r} now. Give this entry another model_name"
                )
        self._serve(model_list, self._added)

    def add(self, entry: ModelConfig) -> None:
        """Serve one model more.

        Raises:
            ConfigError: The entry is wrong, or its name is taken.
        """
        name = entry["model_name"]
        self.check_free(name)
        self._serve(self._listed, {**self._added, name: entry})

    def remove(self, name: str) -> None:
        """Serve an added model no more, if there is one of this name."""
        self._serve(
            self._listed, {other: entry for other, entry in self._added.items() if other != name}
        )

    def check_free(self, name: str) -> None:
        """Refuse a name that is taken.

        Raises:
            ConfigError: It says by whom, and what to do.
        """
        if name in self._added:
            raise ConfigError(
                f"LLMProxy: another algorithm serves its model {name!r} here now; give each "
                "algorithm a proxy of its own"
            )
        if any(entry["model_name"] == name for entry in self._listed):
            raise ConfigError(
                f"LLMProxy: {name!r} stands in model_list, and the algorithm serves the model that "
                "it trains under this name. Leave the entry out, or, where it is another model, "
                "give it another model_name"
            )

    def default(self) -> str | None:
        """What is meant where none is named: the only listed model, or else the only one."""
        names = {entry["model_name"] for entry in self._listed} or set(self.backends.names)
        return names.pop() if len(names) == 1 else None

    def _serve(self, listed: ModelList, added: dict[str, ModelConfig]) -> None:
        self.backends = Backends(self._complete([*listed, *added.values()]), self.backends)
        self._listed, self._added = list(listed), added
