"""The task runner: verl's process that trains, with agl's trainer and manager in it.

``verl.trainer.main_ppo.run_ppo(config, task_runner_class)`` is verl's hook for it.
"""

from typing import Any

import ray


@ray.remote(num_cpus=1)
class AglTaskRunner:
    """The Ray actor that ``run_ppo`` starts; ``run`` returns when training has ended."""

    def run(self, config: Any, link: Any, trainer_cls: Any, daemon_cls: Any) -> None:
        """Train to the end; ``link`` is the handle of the ``Link`` to the algorithm.

        Raises:
            AlgorithmError: Nothing to train on came any more.
        """
        import transfer_queue as tq
        from omegaconf import OmegaConf
        from verl.utils.logging_utils import configure_verl_logging

        from agl.errors import AlgorithmError
        from agl_verl.manager import AglManager
        from agl_verl.trainers import load_class, trainer_class

        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        trainer: Any = None
        manager: Any = None
        succeeded = False
        try:
            trainer = trainer_class(config, trainer_cls)(config=config)
            trainer.init()
            manager_cls: Any = load_class(daemon_cls or AglManager, AglManager, "daemon_cls")
            manager = manager_cls.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
                link=link,
                step=int(trainer.global_steps),
            )
            trainer.fit(manager)
            succeeded = True
        except Exception as error:
            # verl's own message would be about the batch that it has not got.
            if manager is not None and manager.failure is not None:
                raise AlgorithmError(manager.failure) from error
            raise
        finally:
            if manager is not None:
                manager.close()
            tracking = getattr(trainer, "logger", None)
            if tracking is not None:
                tracking.finish(exit_code=0 if succeeded else 1)
            tq.close()
