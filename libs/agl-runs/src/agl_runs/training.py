"""What ``agl run`` and ``agl dev`` do: check everything, then build, run and sum up."""

import asyncio
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agl.algorithm.run_result import RunResult
from agl.cli.shared import note, read_and_close
from agl.errors import ConfigError, RunError
from agl.plugins.parts import plan_part
from agl.plugins.recorder import RunRequest
from agl.store.base import LightningStore
from agl.trainer import Trainer
from agl.utils.secrets import HIDDEN
from agl_runs.apart import pythons_of, run_apart
from agl_runs.config.file import (
    CheckedConfig,
    ConfigFile,
    RunConfig,
    as_yaml,
    check_config,
    load_config,
    load_config_of_run,
)
from agl_runs.files import make_private_folder, write_whole
from agl_runs.finding import enter, last_time, stores_here
from agl_runs.folders import CONFIG, RUNS, STORE, STORES, known_run, new_run_id, shown_status
from agl_runs.local_runs import folder_here, one_of, runs_here, runs_in
from agl_runs.records import Run
from agl_runs.secrets import redact
from agl_runs.store import query_runs


def train(
    path: Path, overrides: Sequence[str], *, dry: bool, force: bool = False, ui: bool = False
) -> None:
    """Run a configuration to the end and print what came of it.

    ``dry`` runs Baseline in the algorithm's place; ``force`` goes on in the configured folder
    although the results of its run would change.

    Raises:
        ConfigError: Something is wrong with the request; nothing was started or written.
        PluginError: A component is unknown or does not load; nothing was started or written.
        RunError: The run failed, or no rollout succeeded.
    """
    file = load_config(path, overrides)
    run = replace(new_run(file.config), force=force)
    if run.force and not run.resume:
        raise ConfigError("--force is for a run that goes on; add --resume")
    _run(file, run, dry=dry, ui=ui)


def resume_run(
    path: Path | None, overrides: Sequence[str], name: str, *, force: bool, ui: bool
) -> None:
    """Go on with a run, in its folder and its store; for what it raises see ``train``.

    ``name`` is its id, a part of it, its folder or store file; empty for the newest. Without
    ``path``, the run has the configuration in its folder. If the file has a ``run_dir`` without a
    run in it, one begins there: who starts a job again need not know how far it came.
    """
    file = None if path is None else load_config(path, overrides)
    run = _find_run(name, file)
    if run is None:
        assert file is not None
        request = new_run(file.config)
    else:
        request = RunRequest(run.run_id, resume=True, folder=folder_here(run), force=force)
        if file is None:
            file = load_config_of_run(run, overrides)
            enter(run)
    _run(file, request, dry=False, ui=ui)


def _find_run(name: str, file: ConfigFile | None) -> Run | None:
    run_dir = None if file is None else file.config.run_dir
    where, by_name = f"in {run_dir!r}" if run_dir is not None else "under agl-runs", bool(name)
    folder = Path(name).parent if Path(name).name in STORES else Path(name)
    if name and os.path.isdir(folder):  # one that is too long is none
        runs = _runs_of_folders(folder.glob(CONFIG)) or runs_here(folder)
        name, where = "", f"in {name!r}"
    elif file is not None and file.config.store != RunConfig.store:
        runs, where = _runs_of_store(file, name), "in the store of the file"
        if run_dir is not None and not name:
            place = Path(run_dir).absolute()
            runs = [run for run in runs if run.folder and Path(run.folder).absolute() == place]
    else:
        runs = runs_here(None if run_dir is None else Path(run_dir), in_files=True)
        if file is None:
            runs += _runs_of_folders(Path(RUNS).glob(f"*{name}*/{CONFIG}"))
            runs.sort(key=last_time)
    if name:
        return one_of(runs, name)
    runs = [run for run in runs if run.derived_from is None]
    ended = [run for run in runs if not run.problem and shown_status(run) != "running"]
    # One that has come to its end may have more steps now.
    found = [run for run in ended if run.status != "finished"] or ended
    if run_dir is not None and not by_name:
        # What ran on a machine that died is shown as running; what still runs is refused later.
        found = found or [run for run in runs if not run.problem]
        if not runs:
            note(f"there is no run in {run_dir!r} yet")
            return None
    if not found:
        others = ", ".join(run.run_id for run in runs[-5:])
        named = f", or name one that is running or cannot be read: {others}" if others else ""
        raise ConfigError(
            f"there is no run {where} to go on with; begin one with agl run FILE{named}"
        )
    return found[-1]


def _runs_of_folders(written: Iterable[Path]) -> list[Run]:
    """The run of the newest of these configurations, if its store is none in its folder."""
    newest = max(written, key=os.path.getmtime, default=None)
    if newest is None or (newest.parent / STORE).exists():
        return []
    folder = newest.parent.absolute()
    run = Run(run_id=folder.name, algorithm="", create_time=0.0, folder=str(folder))
    found = _runs_of_store(load_config_of_run(run), folder.name)
    return [one for one in found if one.folder == run.folder]


def _runs_of_store(file: ConfigFile, name: str) -> list[Run]:
    spec, run_dir = file.config.store, file.config.run_dir
    if isinstance(spec, dict) and spec.get("type", "sqlite") == "sqlite":
        path = spec.get("path")
        if path is None:  # options of the one in the run's folder
            return runs_here(None if run_dir is None else Path(run_dir), in_files=True)
        return sorted(runs_in(Path(path)), key=last_time) if Path(path).is_file() else []
    found = [one for one in stores_here() if one.is_dir() and name in one.parent.name]
    folders = [one.parent for one in found] if run_dir is None else [Path(run_dir)]
    option: dict[str, Any] = {"path": str(folders[-1] / STORE)} if folders else {}
    store = plan_part("store", spec, where=file.where("store"), **option).build()
    return sorted(read_and_close(store, query_runs), key=last_time)


def _run(file: ConfigFile, run: RunRequest, *, dry: bool, ui: bool) -> None:
    if pythons := {} if dry else pythons_of(file):
        run_apart(file, run, pythons, ui=ui)
    else:
        run_here(file, run, dry=dry, hooks=["ui"] if ui else [])


def run_here(file: ConfigFile, run: RunRequest, *, dry: bool, hooks: Sequence[object] = ()) -> None:
    """Run what the role of this process is; for what it raises see ``train``."""
    folder = run.folder
    assert folder is not None
    checked = check_config(file, run_dir=folder, dry=dry)
    components = checked.build()
    strategy = components["strategy"]
    strategy.prepare()
    plan = checked.components["store"]
    if getattr(strategy, "role", None) == "runner":
        # The run's folder is on the algorithm's machine, and so is the store, unless all share one.
        shared = getattr(strategy, "managed_store", None) is False
        _fit(checked.trainer(components, plan.build() if shared else None), checked, dry=dry)
        return
    is_new = not folder.exists()
    make_private_folder(folder)
    note(f"run: {run.run_id}")
    note(f"run folder: {folder}")
    store = plan.build()
    trainer = None
    try:
        trainer = _trainer(checked, components, store, run, folder, hooks)
        result = _fit(trainer, checked, dry=dry)
    finally:
        asyncio.run(store.close())
        if trainer is not None and trainer.result.run_id:
            path = getattr(store, "path", None)
            words = [*(str(one) for one, _ in file.layers), *file.overrides]
            _sum_up(trainer.result, path, folder, None if dry else words)
        elif is_new and {one.stem for one in folder.iterdir()} <= {"config", "store"}:
            shutil.rmtree(folder)  # nothing was started
    if result.rollouts and "succeeded" not in result.rollouts:
        most = result.failures[0] if result.failures else "no reason was stored"
        raise RunError(f"no rollout succeeded; most often: {most}")
    if result.trained is False:
        excluded = ", ".join(f"{n} {reason}" for reason, n in result.excluded.items())
        why = result.warnings[-1] if result.warnings else f"model calls excluded: {excluded}"
        raise RunError(f"nothing was trained: {why}")


def _sum_up(result: RunResult, path: str | None, folder: Path, words: list[str] | None) -> None:
    """Print what came of the run that ``words`` began, and how it goes on if it has not ended."""
    print(result.summary)
    if path is not None:
        print(f"store        {path}")
    if result.record is not None and result.status not in ("finished", "running"):
        # What an error of the run says, the command says last.
        error = result.record.generations[-1].error if result.status == "stopped" else None
        note(f"run {result.run_id} {result.status}{f': {error}' if error else ''}")
        if words is not None:
            if HIDDEN not in (folder / CONFIG).read_text("utf-8"):
                words = []  # all is in its folder
            name = result.run_id if folder.parent == Path(RUNS) else str(folder)
            note(f"to go on: agl run {redact(shlex.join([*words, '--resume', name]))}")


def new_run(config: RunConfig) -> RunRequest:
    """A run in the configured folder, or in a new one; one that has begun in it goes on."""
    if config.run_dir is None:
        run_id = new_run_id()
        return RunRequest(run_id, folder=Path(RUNS) / run_id)
    folder = Path(config.run_dir)
    known = known_run(folder)
    run_id = new_run_id() if known is None else known[0]
    return RunRequest(run_id, resume=known is not None, folder=folder)


@dataclass
class _ConfigWriter:
    """Writes the configuration of a run that goes on when nothing refuses it any more."""

    path: Path
    text: str

    def on_run_start(self) -> None:
        write_whole(self.path, self.text)


def _trainer(
    checked: CheckedConfig,
    components: dict[str, Any],
    store: LightningStore,
    run: RunRequest,
    folder: Path,
    hooks: Sequence[object],
) -> Trainer:
    config = {
        "file": str(checked.file.path.absolute()),
        "working_directory": os.getcwd(),
        **checked.resolved(),
    }
    writer = _ConfigWriter(folder / CONFIG, as_yaml(redact(checked.file.values)))
    if not run.resume:
        writer.on_run_start()
    return checked.trainer(
        components, store, run=replace(run, config=config), hooks=[*checked.hooks, writer, *hooks]
    )


def _fit(trainer: Trainer, checked: CheckedConfig, *, dry: bool) -> RunResult:
    trainer.shows_result = False
    fit = trainer.dev if dry else trainer.fit
    return fit(checked.agent, checked.train, val_dataset=checked.val)
