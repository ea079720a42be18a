"""verl's own V1 trainers, by the name of their mode."""

import logging
from typing import Any

from verl.trainer.ppo.v1 import trainer_colocate_async, trainer_separate_async, trainer_sync

STOCK: dict[str, type] = {
    "sync": trainer_sync.PPOTrainerSync,
    "colocate_async": trainer_colocate_async.PPOTrainerColocateAsync,
    "separate_async": trainer_separate_async.PPOTrainerSeparateAsync,
}


class _ToleratesFlush(logging.LoggerAdapter[Any]):
    """In separate_async verl 0.9.1 calls ``logger.info(message, flush=True)``, an error."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        kwargs.pop("flush", None)
        return msg, kwargs


if not isinstance(trainer_separate_async.logger, logging.LoggerAdapter):
    trainer_separate_async.logger = _ToleratesFlush(trainer_separate_async.logger, {})
