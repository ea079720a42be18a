"""verl's configuration as agl takes it: a dict, checked key by key without verl, then made whole.

``check`` needs no verl and runs when ``VERL(config)`` is called: unknown keys, keys of older verls,
and settings that would have no effect are refused, with what to write. ``compose`` lays what is
left on verl's own defaults.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast

from agl.errors import ConfigError
from agl.utils.text import did_you_mean
from agl_runs.options import Count, check_options

SECTION = "agentlightning"
"""Our own section; ``agl`` is another name of it."""


@dataclass(frozen=True)
class Ours:
    """What our section says under ``trace_aggregator``."""

    level: Literal["trajectory", "transition"] = "trajectory"
    trajectory_max_prompt_length: Count | None = None
    trajectory_max_response_length: Count | None = None


OUR_KEYS = {"trace_aggregator": {field.name: None for field in fields(Ours)}}
_SHOWN = "why a row begins is in the row (row_break), and `agl doctor` shows it"

INSTEAD: dict[str, str] = {
    "data.train_files": "tasks come from Trainer.fit(train_dataset=...)",
    "data.val_files": "tasks come from Trainer.fit(val_dataset=...)",
    "data.custom_cls": "tasks come from Trainer.fit(train_dataset=...)",
    "data.prompt_key": "the agent makes its prompts",
    "data.sampler": "tasks are drawn by verl; set data.shuffle and data.seed",
    "data.datagen": "tasks come from Trainer.fit(train_dataset=...)",
    "data.filter_overlong_prompts": "prompts are made while an agent runs; calls with longer ones "
    "are excluded and counted",
    "data.truncation": "a prompt is never cut; calls with longer ones are excluded and counted",
    "data.gen_batch_size": "verl needs 1 to replace groups that failed",
    "custom_reward_function": "rewards come from the agent: it returns or emits them",
    "reward_model": "rewards come from the agent: it returns or emits them",
    "reward.custom_reward_function": "rewards come from the agent: it returns or emits them",
    "reward.reward_model": "rewards come from the agent: it returns or emits them",
    "reward.reward_manager": "rewards come from the agent: it returns or emits them",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "use VERL(daemon_cls=...)",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": "the agent is that of Trainer.fit",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "the agent is that of Trainer.fit",
    "actor_rollout_ref.rollout.checkpoint_manager_class": "verl's V1 trainers do not look at it",
    "actor_rollout_ref.rollout.multi_turn.enable": "an agent makes as many turns as it likes",
    "actor_rollout_ref.rollout.multi_turn.max_assistant_turns": "the agent ends its turns itself",
    "actor_rollout_ref.rollout.multi_turn.max_user_turns": "the agent ends its turns itself",
    "distillation.enabled": "agl-verl does not ask teachers for log-probabilities",
    "actor_rollout_ref.rollout.multi_turn.interaction_config_path": "the agent is that of "
    "Trainer.fit",
    "actor_rollout_ref.rollout.multi_turn.completion_callback": "the agent is that of Trainer.fit",
    "actor_rollout_ref.rollout.multi_turn.tool_config_path": "the agent runs its tools itself",
    "actor_rollout_ref.rollout.multi_turn.function_tool_path": "the agent runs its tools itself",
    "actor_rollout_ref.rollout.update_weights_bucket_megabytes": "write "
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes",
    "actor_rollout_ref.profiler": "write actor_rollout_ref.actor.profiler",
    "critic.model.fsdp_config": "write critic.fsdp",
    "trainer.npu_profile": "write global_profiler",
    "trainer.profile_steps": "write global_profiler.steps",
    "trainer.controller_nsight_options": "write "
    "global_profiler.global_tool_config.nsys.controller_nsight_options",
    "trainer.worker_nsight_options": "write "
    "global_profiler.global_tool_config.nsys.worker_nsight_options",
    "trainer.use_legacy_worker_impl": "verl 0.9 has one implementation; leave it out",
    "trainer.use_v1": "agl-verl needs verl's V1 trainer, which is the default; leave it out",
    "trainer.remove_previous_ckpt_in_save": "write trainer.max_actor_ckpt_to_keep: 1",
    "ray_init": "write ray_kwargs.ray_init",
    **{
        f"{section}.{key}": instead
        for section in (SECTION, "agl")
        for key, instead in {
            "port": "the port is the gateway's; write Trainer(llm_proxy={'port': ...})",
            "trace_aggregator.debug": _SHOWN,
            "trace_aggregator.mismatch_log_dir": _SHOWN,
        }.items()
    },
}
"""Keys that are refused, with what to do instead; also for all that is below them."""

DEFAULTS: dict[str, Any] = {
    "actor_rollout_ref": {"rollout": {"tensor_model_parallel_size": 1}},
    "data": {"dataloader_num_workers": 0, "val_batch_size": None},
    "reward": {"num_workers": 0},
    "trainer": {
        "logger": ["console"],
        "project_name": "agl",
        "experiment_name": "verl",
        "v1": {"sampler": {"sync_refill_failed_groups": True}},
    },
    "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 2}}},
}
"""Where agl's defaults differ from verl's: a rollout server has one GPU; tasks are numbers and need
no loader processes; rewards come with rollouts; groups that failed are replaced; nothing is sent to
wandb unasked. Where no size of micro-batches is given, verl packs them by tokens
(``use_dynamic_bsz``). A critic starts from the actor's model."""


def read(given: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """The configuration as nested dicts: a dict, or the path of a YAML file.

    Raises:
        ConfigError: There is no such file, or it holds something else.
    """
    if isinstance(given, str | Path):
        import yaml

        try:
            loaded: Any = yaml.safe_load(Path(given).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"VERL config: {str(given)!r} cannot be read: {error}") from None
    else:
        loaded = given
    if not isinstance(loaded, Mapping):
        raise ConfigError(
            f"VERL config: expected a dict or the path of a YAML file; got {type(loaded).__name__}"
        )
    return _plain(cast("Mapping[Any, Any]", loaded))


def _plain(node: Any) -> Any:
    """Copies, with dotted keys taken apart: ``{"trainer.nnodes": 1}`` is ``{"trainer": {...}}``."""
    if not isinstance(node, Mapping):
        return list(cast("Any", node)) if isinstance(node, tuple) else node
    result: dict[str, Any] = {}
    for key, value in cast("Mapping[Any, Any]", node).items():
        head, _, rest = str(key).partition(".")
        merge(result, {head: _plain({rest: value} if rest else value)})
    return result


def merge(config: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay ``over`` on ``config``, in place: mappings merge, other values replace."""
    for key, value in over.items():
        present = config.get(key)
        if isinstance(value, Mapping) and isinstance(present, dict):
            merge(cast("dict[str, Any]", present), cast("Mapping[str, Any]", value))
        else:
            config[key] = _plain(value)
    return config


@cache
def known_keys() -> dict[str, Any]:
    """Every key of verl 0.9, nested; ``True`` where anything may stand, ``None`` at the end."""
    text = resources.files("agl_verl").joinpath("known_keys.json").read_text()
    return {**json.loads(text), "model_engine": None}


def check(config: dict[str, Any]) -> Ours:
    """Refuse what verl 0.9 does not know, and what would have no effect here; our section.

    Args:
        config: As ``read`` has given it.
    """
    if SECTION in config and "agl" in config:
        raise ConfigError(f"VERL config: 'agl' and {SECTION!r} are one section; give one of them")
    _check_keys(config, {**known_keys(), SECTION: OUR_KEYS, "agl": OUR_KEYS}, "")
    name = "agl" if "agl" in config else SECTION
    given: dict[str, Any] = get(config, f"{name}.trace_aggregator") or {}
    ours = Ours(**{key.name: given[key.name] for key in fields(Ours) if key.name in given})
    check_options(f"VERL config: {name}.trace_aggregator", ours)
    return ours


def _check_keys(node: Mapping[str, Any], known: Any, path: str) -> None:
    if not isinstance(node, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"VERL config: {path}: expected a mapping, got {node!r}")
    for key, value in node.items():
        where = f"{path}.{key}" if path else key
        if where in INSTEAD:
            if not _is_nothing(value):
                raise ConfigError(f"VERL config: {where} is not used: {INSTEAD[where]}")
            continue
        if key not in known:
            hint = did_you_mean(key, known)
            raise ConfigError(
                f"VERL config: {where}: unknown key.{hint or ' verl 0.9 has no such setting'}"
            )
        below = known[key]
        if isinstance(below, dict) and value is not None:
            _check_keys(value, below, where)


def _is_nothing(value: Any) -> bool:
    """Switched off: refusing it would be pedantry."""
    if isinstance(value, Mapping):
        return all(_is_nothing(one) for one in cast("Mapping[Any, Any]", value).values())
    return value is None or value is False


def with_algorithm(config: dict[str, Any], algorithm: str | None) -> str:
    """Set what an algorithm stands for, where the configuration does not say; returns its name.

    Args:
        algorithm: None takes ``algorithm.adv_estimator`` as the name, or ``grpo``.

    Raises:
        ConfigError: There is no such algorithm, or a name was given and the configuration says
            something else.
    """
    from agl_verl.algorithms import TUNABLE, translate_loss_mean, verl_algorithm

    translate_loss_mean(config)
    section = config.setdefault("algorithm", {})
    estimator = section.pop("adv_estimator", None)
    name = algorithm or str(estimator or "grpo").removeprefix("agl_")
    chosen = verl_algorithm(name)
    said = chosen if estimator is None else verl_algorithm(str(estimator).removeprefix("agl_"))
    if said.estimator != chosen.estimator:
        raise ConfigError(
            f"VERL: algorithm is {algorithm!r}, and the configuration's algorithm.adv_estimator "
            f"is {estimator!r}; say it in one place"
        )
    for key, value in chosen.changes.items():
        given = get(config, key)
        if given is None:
            _set(config, key, value)
        elif algorithm is not None and given != value and key not in TUNABLE:
            raise ConfigError(
                f"VERL: algorithm {algorithm!r} stands for {key}={value!r}, and the configuration "
                f"says {given!r}. Leave one of them out"
            )
    return name


def get(config: Mapping[str, Any], path: str) -> Any:
    """What stands at a dotted path; None where nothing does."""
    node: Any = config
    for key in path.split("."):
        if not isinstance(node, Mapping):
            return None
        node = cast("Mapping[str, Any]", node).get(key)
    return node


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *folders, last = path.split(".")
    for key in folders:
        config = config.setdefault(key, {})
    config[last] = value


def _fill_in(config: dict[str, Any]) -> None:
    """Defaults that follow from what was given."""
    sizes = ("use_dynamic_bsz", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu")
    for path in ("actor_rollout_ref.actor", "critic"):
        section = get(config, path) or {}
        if not any(name in section for name in sizes):
            _set(config, f"{path}.use_dynamic_bsz", True)
    actor = get(config, "actor_rollout_ref.model.path")
    if actor is not None and get(config, "critic.model.path") is None:
        _set(config, "critic.model.path", actor)


def compose(config: dict[str, Any] | str) -> Any:
    """Verl's whole configuration: its defaults, ours, and what was given.

    Args:
        config: Checked; ``with_algorithm`` has seen it.

    Returns:
        An ``omegaconf.DictConfig``.

    Raises:
        ConfigError: This verl does not take a value.
    """
    import importlib.util

    import hydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    spec = importlib.util.find_spec("verl")
    assert spec is not None  # the pre-flight check has seen it
    assert spec.origin is not None
    folder = str(Path(spec.origin).parent / "trainer" / "config")
    given = merge(_plain(DEFAULTS), read(config))
    for name in (SECTION, "agl"):
        given.pop(name, None)
    _fill_in(given)
    engine = given.pop("model_engine", "dp")
    try:
        with hydra.initialize_config_dir(config_dir=folder, version_base=None):
            whole = hydra.compose("ppo_trainer", overrides=[f"model_engine={engine}"])
        OmegaConf.set_struct(whole, False)
        whole.merge_with(OmegaConf.create(given))
    except (OmegaConfBaseException, HydraException) as error:
        raise ConfigError(f"VERL config: verl does not take it: {error}") from error
    return whole
