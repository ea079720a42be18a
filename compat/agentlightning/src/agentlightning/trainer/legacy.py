"""The trainer of 0.1; one class does both."""

from agentlightning.trainer.trainer import Trainer

TrainerLegacy = Trainer
