"""The contract of a store, as far as it is about runs."""

from agl.store.operation_table import operation
from agl.types import Run, RunOutcome, RunStart


class StoreRuns:
    """A run is what one algorithm does with one configuration, in one start or several.

    Its rollouts have its id as ``run`` in their metadata, and the number of the start that queued
    them as ``generation``.
    """

    @operation
    async def begin_run(self, start: RunStart) -> Run:
        """Add a run, or begin the next generation of one that is stored.

        A stored run gets configuration, code, data and folder of this start. A generation that has
        not ended is taken for dead. Asked again with the same ``key``, nothing is begun.

        Returns:
            The run; its last generation is the one that was begun, and no other start has its
            number.

        Raises:
            InvalidTransitionError: The stored run is of another algorithm.
        """
        ...

    @operation
    async def end_run(
        self, run_id: str, generation: int, outcome: RunOutcome, error: str | None = None
    ) -> Run:
        """Note how a generation ended; one that is not the last changes no status of the run.

        The first report counts, but for ``died``: a generation that was thought dead may say itself
        how it ended.

        Args:
            run_id: Which run.
            generation: Its number.
            outcome: How it ended; ``died`` when its process was seen to be gone.
            error: Why.

        Raises:
            UnknownRecordError: No such run, or no such generation.
            InvalidTransitionError: No run ends so.
            ReplacedError: It would have finished, and another start has taken over.
        """
        ...

    @operation
    async def delete_run(self, run_id: str, *, only_count: bool = False) -> dict[str, int]:
        """Delete a run with its rollouts, their attempts, spans, accounts and resources.

        Resources that other rollouts use, and the latest ones, stay.

        Args:
            run_id: Which.
            only_count: Delete nothing, and only say how much it would be.

        Returns:
            How many ``rollouts``, ``attempts``, ``spans``, ``ledger_parts`` and ``resources``.

        Raises:
            UnknownRecordError: No such run.
            InvalidTransitionError: It runs. ``end_run`` tells the store that it has died.
        """
        ...
