"""What a run came to: the decision, the prompts, what was spent; in a file and in the log."""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agl_apo.decision import Decision

logger = logging.getLogger("agl.apo")


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    decision: Decision | None
    """None where no candidate was better than the seed even in the search."""
    prompts: dict[str, str]
    """The accepted texts, else the seed's."""
    best: str
    """Id of the candidate that they are of."""
    leader: str
    """Id of the candidate that was best in the search, accepted or not."""
    evaluations: int
    """In all."""
    evaluations_held_out: int
    """For the decision."""
    failed_evaluations: int
    """Left out, because they failed as often as they were run."""
    evaluations_again: int
    """Run again because they had failed; not among ``evaluations``."""
    model_calls: int
    tokens: int
    """Of those calls, as the endpoint counts them."""
    copies: tuple[int, ...]
    """Train tasks that the best prompt copies from."""
    resources_id: str
    """The snapshot that holds it, the store's latest."""
    run_dir: str
    """Where the best prompts are files."""

    @property
    def accepted(self) -> bool:
        """Whether the seed was replaced."""
        return self.decision is not None and self.decision.accepted

    def as_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)


def write_files(run_dir: Path, result: Result) -> None:
    """Write ``best_prompt.<name>.txt`` per prompt, and ``result.json``."""
    for name, text in result.prompts.items():
        (run_dir / f"best_prompt.{name}.txt").write_text(text, encoding="utf-8")
    text = json.dumps(result.as_json(), indent=2, ensure_ascii=False)
    (run_dir / "result.json").write_text(text + "\n", encoding="utf-8")


def say(result: Result) -> None:
    """Log the outcome."""
    if result.failed_evaluations:
        logger.warning(
            "%d evaluations failed as often as they were run, and were left out; see: agl rollouts "
            "--status failed",
            result.failed_evaluations,
        )
    logger.info(
        "the rollouts of this search are %d evaluations, %d of them for the decision, and %d that "
        "were run again because they had failed; it asked models in %d calls, %d tokens",
        result.evaluations,
        result.evaluations_held_out,
        result.evaluations_again,
        result.model_calls,
        result.tokens,
    )
    decision = result.decision
    if decision is None:
        logger.info("no candidate was better than the seed in the search; the seed stays")
        return
    logger.info("candidate %s", decision.verdict)
    if result.copies:
        logger.warning("the best prompt copies from the train tasks %s", list(result.copies))
