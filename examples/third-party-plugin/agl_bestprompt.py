"""agl-bestprompt: try every prompt on every task, keep the one with the best mean reward."""

import logging
from typing import Any

import agl

logger = logging.getLogger("agl.bestprompt")


class BestPrompt(agl.Algorithm):
    """Pick the best of a fixed list of prompts.

    The winner is published as the store's latest resources. A rollout that fails, or has no
    reward, counts for no prompt: it is reported, and left out of the mean.

    Args:
        prompts: Candidates, tried in order; a tie keeps the earlier one.
        resource: The name under which the agent finds the prompt.
    """

    def __init__(self, prompts: list[str], resource: str = "prompt") -> None:
        if not prompts:
            raise agl.AglError("bestprompt: prompts is empty; give at least one")
        self.prompts = prompts
        self.resource = resource

    async def run(
        self,
        train_dataset: agl.Dataset[Any] | None = None,
        val_dataset: agl.Dataset[Any] | None = None,
    ) -> None:
        """Run all tasks with each prompt and publish the best one."""
        if not train_dataset:
            raise agl.AglError("bestprompt: there are no train tasks to try the prompts on")
        tasks = [train_dataset[index] for index in range(len(train_dataset))]
        best: tuple[float, str] | None = None
        for prompt in self.prompts:
            rewards = await self.try_prompt(prompt, tasks)
            if not rewards:
                logger.warning("No rollout with the prompt %r has a reward.", prompt)
                continue
            mean = sum(rewards) / len(rewards)
            logger.info(
                "Mean reward %.3f over %d of %d tasks: %r", mean, len(rewards), len(tasks), prompt
            )
            if best is None or mean > best[0]:
                best = (mean, prompt)
        if best is None:
            raise agl.AglError("bestprompt: no prompt brought a reward; see: agl rollouts")
        await self.get_store().add_resources(self.as_resources(best[1]))
        logger.info("Best prompt, with mean reward %.3f: %r", *best)

    async def try_prompt(self, prompt: str, tasks: list[Any]) -> list[float]:
        """Rewards of the tasks' rollouts with this prompt, those without one left out."""
        store = self.get_store()
        update = await store.add_resources(self.as_resources(prompt))
        rollouts = await store.enqueue_many_rollouts(
            [
                agl.EnqueueRolloutRequest(
                    input=task, mode="train", resources_id=update.resources_id
                )
                for task in tasks
            ]
        )
        rewards: list[float] = []
        for rollout in await store.wait_for_rollouts(rollout_ids=[r.rollout_id for r in rollouts]):
            spans = await store.query_spans(rollout.rollout_id, "latest")
            reward = agl.find_final_reward(spans)
            if rollout.status == "succeeded" and reward is not None:
                rewards.append(reward)
        return rewards

    def as_resources(self, prompt: str) -> agl.NamedResources:
        """A snapshot with this prompt, and with what else the trainer was given."""
        others = self.get_initial_resources() or {}
        return {**others, self.resource: agl.PromptTemplate(template=prompt)}
