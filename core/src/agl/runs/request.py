"""Which run is asked for."""

from dataclasses import dataclass
from pathlib import Path

from agl.errors import ConfigError
from agl.plugins.build import Given
from agl.runs import folders
from agl.runs.finding import stores_here
from agl.store.base import LightningStore
from agl.utils.files import make_private_folder


@dataclass(frozen=True)
class RunRequest:
    """Which run is asked for."""

    run_id: str | None = None
    """None is a new one, or the one in the folder."""
    resume: bool = False
    """Whether that run goes on; else it must be new."""
    folder: Path | None = None
    """That it is to have; None takes that of the record, or one under ``agl-runs``."""
    force: bool = False
    """Whether it goes on although it is not what it was."""
    makes_folder: bool = True
    """Whether a folder that is not there is made; an algorithm that names it may make it itself."""

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ConfigError: It does not.
        """
        if self.run_id is not None:
            folders.check_run_id(self.run_id)
        elif self.resume:
            raise ConfigError(
                "resume=True needs the id of the run: Trainer(run=..., resume=True). See: agl runs"
            )

    def default_store(self, is_here: bool) -> Given[LightningStore]:
        """The store of a run that is given none: where the run has an id, the file in its folder.

        Args:
            is_here: Whether the algorithm runs in this process, so that it has the store.

        Raises:
            ConfigError: The run is to go on, and has no such file.
        """
        self.check()
        if self.run_id is None or not is_here:
            return "memory"
        folder = self.folder or folders.default_folder(self.run_id)
        path = folder / folders.STORE
        if self.resume and not path.is_file():
            known = [each.parent.name for each in stores_here()]
            raise ConfigError(
                f"no run {self.run_id!r} to go on with: there is no {path}. Give its store or its "
                f"run_dir, or leave resume out to begin it. Runs here: {', '.join(known) or 'none'}"
            )
        make_private_folder(folder)
        return {"type": "sqlite", "path": str(path)}

    def folder_of_begun(self) -> Path:
        """The folder of the run, which has begun.

        Raises:
            ConfigError: None is named, or it has not.
        """
        folder = self.folder or (self.run_id and folders.default_folder(self.run_id))
        if not folder or not folder.is_dir():
            named = f"there is no run in {str(folder)!r}" if folder else "give run or run_dir"
            raise ConfigError(f"Trainer.replay: {named}. See: agl runs")
        return folder
