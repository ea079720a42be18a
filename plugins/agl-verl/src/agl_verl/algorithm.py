"""``VERL``: the algorithm that trains with verl.

This process has store, gateway and adapter. verl trains in processes of Ray, and asks here for
groups of rollouts (``agl_verl.link``). Agents' calls go through the gateway to a token backend in
verl's process, and from there to verl's rollout servers.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agl.algorithm.base import Algorithm
from agl.errors import AlgorithmError
from agl.types import LLM, Dataset
from agl_learning.run.folder import cancel_dead_starts, check_own, hold_run
from agl_learning.run.start import free_gateway, run_folder
from agl_runs.options import need_tasks
from agl_verl.configuration import compose, get, read
from agl_verl.options import NAME, Options

if TYPE_CHECKING:
    from agl.store.base import LightningStore
    from agl_verl.run import Run


class VERL(Options, Algorithm):
    """Reinforcement learning with verl 0.9: FSDP or Megatron, vLLM or SGLang, one GPU or a cluster.

    Needs a dataset of tasks and an agent that returns (or emits) a reward; the agent gets the model
    as the resource ``resource_name``. The configuration is verl's own, as a dict; see
    ``agl_verl.configuration`` for the keys that are refused, and where defaults differ. The options
    are those of ``Options``.
    """

    default_adapter = "rows"
    needs_gateway = True
    publishes = (LLM,)
    summary: dict[str, Any] | None = None
    """What ``summary.json`` holds, once ``run`` has ended."""
    _run: "Run | None" = None
    """While there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.credit is not None:
            self.adapter_options = {"credit": self.credit}

    def check_datasets(
        self, train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
    ) -> None:
        """Refuse to begin without tasks."""
        need_tasks("VERL", train_dataset)

    async def clear_leftovers(self, store: "LightningStore") -> None:
        """Cancel what a killed part of the run left in the store, before runners claim it."""
        folder = self.run_dir or self.get_run_folder()
        if folder is None:
            return  # a folder of its own, which is made now
        check_own(folder, NAME)
        path = get(read(self.config), "trainer.resume_from_path")
        homes = [Path(path).parent.parent] if isinstance(path, str) else []
        await cancel_dead_starts(store, folder, *homes)

    async def run(
        self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None
    ) -> None:
        """Train to the end.

        Raises:
            ConfigError: No tasks, no gateway, a folder that another process uses or that has a run
                of another algorithm, or verl or the cluster cannot do it.
            AlgorithmError: verl failed, or nothing to train on came any more.
            LedgerError: A model call stands in no bin or in several.
            StoppedError: It was asked to stop, or its budget is spent.
        """
        self.check_datasets(train_dataset, val_dataset)
        assert train_dataset is not None
        gateway = free_gateway(self, "VERL")
        from agl_verl.launch import launch
        from agl_verl.preflight import check_environment
        from agl_verl.run import Run, verl_config

        folder = run_folder(self, self.run_dir)
        check_own(folder, NAME)
        check_environment()
        config = verl_config(compose(self.config), folder, train_dataset, val_dataset)
        with hold_run(folder):
            run = self._run = Run(self, self, gateway, config, folder, train_dataset, val_dataset)
            try:
                await launch(config, (self.trainer_cls, self.daemon_cls), run.answer)
            except AlgorithmError as error:
                run.raise_if_stopped(error)
                raise
            finally:
                self._run = None
                self.summary = await run.end()
            run.raise_if_stopped()

    def ask_to_stop(self) -> bool:
        """End after the step under way, with a checkpoint."""
        run = self._run
        if run is not None:
            run.ask_to_stop()
        return run is not None
