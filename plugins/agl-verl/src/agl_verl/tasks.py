"""The dataset that verl sees: numbers of tasks. The tasks stay with the algorithm.

So a task may be anything that an agent takes, and verl's own checkpoints of its data loader are
those of the order of the tasks.
"""

from typing import Any

from torch.utils.data import Dataset

PREFIX = "agl:"


def files_of(num_tasks: int) -> str:
    """What ``data.train_files`` and ``data.val_files`` are set to."""
    return f"{PREFIX}{num_tasks}"


class TaskNumbers(Dataset[dict[str, Any]]):
    """As many rows as there are tasks; ``data.custom_cls`` names it.

    Args:
        data_files: As ``files_of`` has made it.
        max_samples: Only so many from the front; negative: all.
        **unused: What verl gives every dataset: tokenizer, processor, config.
    """

    def __init__(self, data_files: Any, max_samples: int = -1, **unused: Any) -> None:
        name = str(data_files if isinstance(data_files, str) else data_files[0])
        count = int(name.removeprefix(PREFIX))
        self._count = min(count, max_samples) if max_samples >= 0 else count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        # verl counts prompts in ``raw_prompt``, and names its validation metrics after the source.
        return {"index": index, "raw_prompt": index, "data_source": "agl"}
