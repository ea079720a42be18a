"""What ``VERL(config)`` and its environment may be; needs no verl."""

import functools

import pytest
from tests.interpreter import python

import agl
from agl.errors import ConfigError, install_line
from agl_verl.algorithms import (
    ALGORITHMS,
    ALIASES,
    LOSS_MEAN,
    REFUSED,
    translate_loss_mean,
    verl_algorithm,
)
from agl_verl.configuration import Ours, check, read, with_algorithm
from agl_verl.preflight import check_temporary_folder
from agl_verl.versions import WANTED, check_versions, conflicts

# The example of the guide `docs/how-to/train-sql-agent.md`, with what it leaves out in words.
OFTEN = {"test_freq": 32, "save_freq": 64, "total_epochs": 2}
GUIDE = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {"train_batch_size": 32, "max_prompt_length": 4096, "max_response_length": 2048},
    "actor_rollout_ref": {
        "rollout": {"name": "vllm", "n": 4, "multi_turn": {"format": "hermes"}},
        "actor": {"ppo_mini_batch_size": 32, "optim": {"lr": 1e-6}},
        "model": {"path": "Qwen/Qwen2.5-Coder-1.5B-Instruct"},
    },
    "trainer": {"n_gpus_per_node": 1, "val_before_train": True, **OFTEN},
}


def refused(config, **options):
    with pytest.raises(ConfigError) as caught:
        agl.VERL(config, **options)
    return str(caught.value)


def test_the_guides_configuration_is_taken_as_it_stands():
    algorithm = agl.VERL(GUIDE)
    assert algorithm.config["data"] == GUIDE["data"]
    assert algorithm.config["trainer"] == GUIDE["trainer"]
    assert algorithm.config["algorithm"]["adv_estimator"] == "agl_grpo"
    assert GUIDE["algorithm"]["adv_estimator"] == "grpo", "the caller's dict was changed"
    assert algorithm.config["algorithm"]["use_kl_in_reward"] is False


@pytest.mark.parametrize(
    "config",
    [
        # What is switched off is no reason to refuse.
        {"reward_model": {"enable": False}, "data": {"train_files": None}},
        # Free sections take anything.
        {"actor_rollout_ref": {"model": {"override_config": {"x": {"y": 1}}}}},
        {"actor_rollout_ref.rollout.engine_kwargs.vllm": {"tool_call_parser": "hermes"}},
        {"ray_kwargs": {"ray_init": {"address": "auto", "runtime_env": {"env_vars": {"A": "1"}}}}},
    ],
)
def test_what_verl_knows_is_taken(config):
    agl.VERL(config)


MISSPELT, RIGHT = "actor_rollout_ref.rollout.gpu_memory_utilisation", "gpu_memory_utilization"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"data": {"train_files": "a.parquet"}}, "Trainer.fit(train_dataset=...)"),
        ({"custom_reward_function": {"path": "r.py"}}, "rewards come from the agent"),
        ({"reward_model": {"enable": True}}, "rewards come from the agent"),
        ({"trainer": {"profile_steps": [1]}}, "write global_profiler.steps"),
        ({"ray_init": {"num_cpus": 4}}, "write ray_kwargs.ray_init"),
        ({"critic": {"model": {"fsdp_config": {"param_offload": True}}}}, "write critic.fsdp"),
        ({"agentlightning": {"port": 9999}}, "Trainer(llm_proxy={'port': ...})"),
        ({"agl": {"port": 9999}}, "Trainer(llm_proxy={'port': ...})"),
        ("/nowhere.yaml", "'/nowhere.yaml' cannot be read"),
        ({MISSPELT: 0.5}, f"VERL config: {MISSPELT}: unknown key. Did you mean '{RIGHT}'?"),
    ],
)
def test_what_would_have_no_effect_is_refused_with_what_to_write(config, says):
    assert says in refused(config)


def test_dotted_keys_and_yaml_files_are_taken(tmp_path):
    path = tmp_path / "verl.yaml"
    path.write_text("trainer.nnodes: 2\ntrainer:\n  total_epochs: 3\n")
    expected = {"trainer": {"nnodes": 2, "total_epochs": 3}}
    assert read(str(path)) == expected
    assert read({"trainer.nnodes": 2, "trainer": {"total_epochs": 3}}) == expected
    assert agl.VERL(str(path)).config["trainer"] == expected["trainer"]


def test_rows_have_a_level_and_lengths():
    ours = check({"agl": {"trace_aggregator": {"level": "transition"}}})
    assert ours == Ours(level="transition")
    ours = check({"agentlightning": {"trace_aggregator": {"trajectory_max_prompt_length": 7}}})
    assert ours == Ours(trajectory_max_prompt_length=7)
    assert "level is 'turn'; expected trajectory or transition" in refused(
        {"agl": {"trace_aggregator": {"level": "turn"}}}
    )
    assert "Did you mean 'level'?" in refused({"agl": {"trace_aggregator": {"levl": "turn"}}})


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_has_a_name_in_verls_configuration(name):
    config = {}
    assert with_algorithm(config, name) == name
    assert config["algorithm"]["adv_estimator"].startswith("agl_")
    check(config)  # all of it are keys of verl


def test_an_algorithm_is_said_in_one_place():
    message = refused({"algorithm": {"adv_estimator": "rloo"}}, algorithm="grpo")
    assert message.endswith("is 'rloo'; say it in one place")
    unknown = refused({}, algorithm="rlo")
    assert "unknown algorithm 'rlo'" in unknown
    assert "Did you mean 'rloo'?" in unknown


def test_what_an_algorithm_stands_for_is_not_set_against_the_configuration():
    losing = {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "gspo"}}}}
    message = refused(losing, algorithm="grpo")
    assert "loss_mode='vanilla'" in message
    assert "'gspo'" in message
    # Without a name the configuration is the word.
    config = agl.VERL({**losing, "algorithm": {"adv_estimator": "grpo"}}).config
    assert config["actor_rollout_ref"]["actor"]["policy_loss"]["loss_mode"] == "gspo"


@pytest.mark.parametrize("statement", ["import agl_verl", "import agl; agl.VERL({})"])
def test_nothing_heavy_is_imported_before_it_runs(statement):
    heavy = "verl, ray, torch, transformers, hydra"
    code = f"{statement}\nimport sys\nprint([m for m in '{heavy}'.split(', ') if m in sys.modules])"
    assert python("-c", code, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_verls_names_mean_the_same(alias, name):
    assert verl_algorithm(alias) is ALGORITHMS[name]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_name_says_why(name):
    with pytest.raises(ConfigError, match=r"is refused: .{20}"):
        verl_algorithm(name)


def test_no_name_is_in_two_lists():
    assert not set(ALGORITHMS) & set(ALIASES) | set(ALGORITHMS) & set(REFUSED)
    assert set(ALIASES.values()) <= set(ALGORITHMS)


def test_a_setting_that_makes_it_another_algorithm_is_refused():
    with pytest.raises(ConfigError, match=r"dr_grpo.*norm_adv_by_std_in_grpo=False.*True"):
        with_algorithm({"algorithm": {"norm_adv_by_std_in_grpo": True}}, "dr_grpo")


def test_bounds_may_be_tuned():
    config = {"actor_rollout_ref": {"actor": {"clip_ratio_high": 0.01}}}
    with_algorithm(config, "gspo")
    assert config["actor_rollout_ref"]["actor"]["clip_ratio_high"] == 0.01
    assert config["actor_rollout_ref"]["actor"]["clip_ratio_low"] == 3e-4


def asking(mode, mean=None, **more):
    """For two ways at once, where it has a mean."""
    rollout = {"rollout": {"custom": {"agl_loss_mean": mean}}} if mean else {}
    return {"actor_rollout_ref": {"actor": {"loss_agg_mode": mode}, **rollout}, **more}


@pytest.mark.parametrize(
    ("config", "mean"),
    [
        (asking("token-mean"), "token"),
        (asking("seq-mean-token-mean"), "rollout"),
        (asking("seq-mean-token-sum-norm"), "constant"),
        (asking("token-sum", "verl", critic={"loss_agg_mode": "token-mean"}), "verl"),
    ],
)
def test_a_given_loss_agg_mode_is_taken_over_rollouts(config, mean):
    with_algorithm(config, "grpo")
    assert functools.reduce(dict.get, LOSS_MEAN.split("."), config) == mean


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (asking("token-sum"), "no counterpart"),
        ({"critic": {"loss_agg_mode": "token-mean"}}, "weighs tokens as the actor does"),
        (asking("token-mean", "rollout"), "say it in one place"),
    ],
)
def test_a_loss_agg_mode_that_would_be_ignored_is_refused(config, said):
    with pytest.raises(ConfigError, match=said):
        translate_loss_mean(config)


NEWEST = {"verl": "0.9.1", "torch": "2.13.0", "ray": "2.60.0", "transformers": "5.9.0"}
NEWEST |= {"tensordict": "0.10.0", "TransferQueue": "0.1.11"}
GOOD = dict.fromkeys(WANTED, "1") | NEWEST


def test_all_that_is_wrong_is_named_with_what_was_wanted_and_what_to_run():
    check_versions(GOOD)
    with pytest.raises(ConfigError) as caught:
        check_versions(GOOD | {"verl": "0.8.0", "cachetools": None, "transformers": "5.6.0"})
    text = str(caught.value)
    assert "verl 0.8.0, wanted >=0.9.0,<0.10" in text
    assert "cachetools is not installed, wanted any version" in text
    assert "transformers 5.6.0, wanted >=5.5.3,<5.11,!=5.6.0" in text
    assert install_line("agl-verl[backend]") in text
    assert "tensordict" not in text
    with pytest.raises(ConfigError, match="torch first"):
        check_versions(GOOD | {"torch": None})


def install(folder, name, version, *requirements):
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requirements)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")


def test_packages_that_do_not_fit_each_other_are_named(tmp_path, monkeypatch):
    install(tmp_path, "trainer", "1.0", "cluster[web]>=2", "absent", 'x>9; python_version < "3"')
    install(tmp_path, "cluster", "2.1", 'buffers>=6; extra == "web"', 'x>9; extra == "other"')
    install(tmp_path, "buffers", "5.29", "trainer")
    monkeypatch.syspath_prepend(tmp_path)
    assert conflicts(["trainer"]) == [
        "cluster 2.1 needs buffers>=6, and 5.29 is installed",
        "trainer 1.0 needs absent, and none is installed",
    ]
    assert conflicts(["buffers", "not-here"]) == conflicts(["trainer"])


def test_a_temporary_folder_in_the_environment_is_refused():
    inside = {"VIRTUAL_ENV": "/envs/a", "TMPDIR": "/envs/a/tmp"}
    with pytest.raises(ConfigError, match=r"TMPDIR is '/envs/a/tmp'.*Set RAY_TMPDIR"):
        check_temporary_folder(inside)
    check_temporary_folder(inside | {"RAY_TMPDIR": "/scratch"})  # which Ray takes first
    check_temporary_folder({"TMPDIR": "/envs/a/tmp"})
    check_temporary_folder({"VIRTUAL_ENV": "/envs/a", "TMPDIR": "/envs/ab"})
    check_temporary_folder({})
