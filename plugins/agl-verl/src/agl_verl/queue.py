"""All that agl-verl does with TransferQueue, where verl's V1 trainers look for their data.

verl's contract (``TaskRunnerV1.init_agent_loop_manager``, ``ReplayBuffer``): the prompt's key has a
status, rows have the fields of ``AgentLoopOutput.as_dict()`` and more, and tags. See
``agl_verl.rows`` for the fields that are ours.
"""

from collections.abc import Sequence
from typing import Any

import torch
import transfer_queue as tq
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agl_verl.messages import GroupRequest, Row, row_key


def partition(validate: bool) -> str:
    """Verl keeps training and validation apart."""
    return "val" if validate else "train"


def requests_of(batch: TensorDict, copies: int, val_copies: int) -> list[GroupRequest]:
    """What verl asks for with a batch of prompts."""
    columns = {name: _column(batch, name) for name in ("uid", "index", "global_steps")}
    validate = bool(_column(batch, "validate")[0]) if "validate" in batch else False
    counts = _column(batch, "__rollout_n__") if "__rollout_n__" in batch else None
    number = val_copies if validate else copies
    return [
        GroupRequest(
            uid=str(uid),
            index=int(index),
            copies=int(counts[position]) if counts else number,
            validate=validate,
            step=int(step),
        )
        for position, (uid, index, step) in enumerate(
            zip(columns["uid"], columns["index"], columns["global_steps"], strict=True)
        )
    ]


def put_status(request: GroupRequest, status: str) -> None:
    """Say how far a group is: ``running``, ``finished`` or ``failure``."""
    tq.kv_put(key=request.uid, partition_id=partition(request.validate), tag={"status": status})


def put_rows(request: GroupRequest, rows: Sequence[Row], seconds: float) -> None:
    """Hand over the rows of a group."""
    if not rows:
        return
    fields = [_fields(request, row, seconds) for row in rows]
    tags = [_tag(request, row) for row in rows]
    keys = [row_key(request.uid, row.session, row.number) for row in rows]
    tq.kv_batch_put(
        keys=keys,
        fields=list_of_dict_to_tensordict(fields),
        tags=tags,
        partition_id=partition(request.validate),
    )


def _fields(request: GroupRequest, row: Row, seconds: float) -> dict[str, Any]:
    output = AgentLoopOutput(
        prompt_ids=row.prompt_ids,
        response_ids=row.response_ids,
        response_mask=row.mask,
        response_logprobs=row.logprobs,
        reward_score=row.reward,
        num_turns=len(row.notes.calls),
        metrics=AgentLoopMetrics(generate_sequences=seconds),
        extra_fields={
            "min_global_steps": row.versions[0],
            "max_global_steps": row.versions[1],
            "reward_extra_info": row.notes.rewards,
        },
    )
    fields = output.as_dict()
    fields.update(
        uid=request.uid,
        index=request.index,
        data_source="agl",
        session_id=row.session,
        rollout_id=row.rollout_id,
        agl_row=row.notes.model_dump_json(),
        global_steps=request.step,
        loss_mask=fields["response_mask"],
        input_ids=torch.cat([fields["prompts"], fields["responses"]]),
        multi_modal_inputs={},
    )
    fields["position_ids"] = torch.arange(fields["input_ids"].numel())
    return fields


def _tag(request: GroupRequest, row: Row) -> dict[str, Any]:
    prompt, response = len(row.prompt_ids), len(row.response_ids)
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": response,
        "seq_len": prompt + response,
        "global_steps": request.step,
        "min_global_steps": row.versions[0],
        "max_global_steps": row.versions[1],
    }


def _column(batch: TensorDict, name: str) -> list[Any]:
    """One value per row; what is the same for all rows is repeated."""
    value: Any = batch.get(name)
    if isinstance(value, NonTensorData):
        return [value.data] * len(batch)
    if isinstance(value, NonTensorStack | torch.Tensor):
        return list(value.tolist())
    if isinstance(value, list | tuple):
        return list(value)
    return [value] * len(batch)
