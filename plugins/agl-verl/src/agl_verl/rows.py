"""How the rows of a verl batch make up rollouts: the fields that the manager writes, and packing.

verl's V1 trainers hold a batch as rows (token sequences) in TransferQueue. A rollout may have
several of them: one per call, or one per run of calls that continue each other. What is read here,
per row, is what our manager must write:

- key ``{uid}_{session}_{index}`` with a ``uid`` and a ``session`` without ``_``. ``uid`` is the
  task (the group of siblings), ``{uid}_{session}`` the rollout, ``index`` the row's place in time
  within the rollout, from 0.
- tag ``is_padding``: verl sets it on rows that it adds to fill up a batch; they take no part.
- ``response_mask`` (and ``loss_mask``, equal to it): 1 on tokens that the model sampled and that
  may be trained, 0 on what tools and users wrote between them.
- ``rm_scores``: the reward of the rollout on the last token of *every* row, 0.0 elsewhere, as
  verl's own manager does; the last row's counts.
- ``rollout_log_probs``: log-probabilities at sampling time, 0.0 where ``response_mask`` is 0.
- tags ``min_global_steps`` and ``max_global_steps``: the weight versions that sampled it.
- ``agl_row``, optional (all rows have it, or none): what agl knows beyond that, a JSON string made
  by ``RowNotes(...).model_dump_json()``. Its ``calls`` are needed where a credit rule gave calls of
  one rollout different rewards, its ``rewards`` by the algorithm ``gdpo``.
"""

from pydantic import BaseModel, ConfigDict

from agl_records.types import Credit


class CallNote(BaseModel):
    """One call of a row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: int
    """Its sampled tokens are ``responses[start:end]``."""
    end: int
    credit: Credit
    """As the credit rule gave it; ``reward`` must not be None: leave such calls out, and out of
    ``response_mask`` (``TrainingRow.only`` does)."""


class RowNotes(BaseModel):
    """The content of the field ``agl_row``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: list[CallNote] = []
    """In order; none means that all tokens of the rollout share its reward."""
    rewards: dict[str, float] = {}
    """The dimensions of the rollout's reward, in each of its rows."""
