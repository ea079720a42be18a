"""verl on a CPU: the training of an agent can be tested where no GPU is.

It is verl itself: its trainers, workers, weight updates and queues in Ray processes, its losses and
estimators. Replaced are the device, the inference server (``transformers`` in place of vLLM) and,
for the mode ``separate_async``, the way of the weights (Ray in place of NCCL). A green run shows
that agent, rewards and configuration fit together. It does not show that the GPU run is right, and
a tiny random model learns only what a tiny model can::

    # PYTHONPATH has this package's folder
    from agl_testing.tiny_model import tiny_model
    from verl_cpu import cpu_config, use_cpu

    use_cpu()  # before verl is imported
    config = cpu_config(tiny_model("tiny", my_conversations), trainer={"total_training_steps": 3})
    agl.Trainer(algorithm=agl.VERL(config), n_runners=2).fit(my_agent, my_tasks)

``use_cpu`` sets two variables of verl's: ``VERL_USE_EXTERNAL_MODULES`` has each of its processes
import ``verl_cpu.plugin``, which registers all of this, and ``VERL_PLATFORM=agl_cpu``
chooses it. agl-verl knows nothing of it.

It refuses what it cannot do: tensor parallel inference, images, LoRA as an adapter, reward models,
FSDP1 and Megatron.

Look at verl's metric ``training/rollout_probs_diff_max`` after a run: the largest difference
between a token's probability at the inference server and at the trainer. It is below 1e-5 in the
mode ``sync`` when weights arrive; a run that merely ends proves little.
"""

from verl_cpu.config import cpu_config, use_cpu

__all__ = ["cpu_config", "use_cpu"]
