"""What loading a model leaves behind."""

import gc

import pytest

pytest.importorskip("torch")

import agl_torch
from agl.errors import ConfigError
from agl_torch.garbage import without_collections

from .conftest import build_model


def test_garbage_is_looked_for_again_after_a_block_without() -> None:
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_a_block_without_collections_made_is_old_and_can_still_be_collected() -> None:
    with without_collections():
        made = [[number] for number in range(5_000)]
    assert not any(made is each for each in gc.get_objects(generation=0))
    assert any(made is each for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0


def test_a_process_that_does_without_collections_goes_on_doing_so() -> None:
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_critic_that_does_not_know_the_models_tokens_is_refused(model):
    narrow = build_model()
    narrow.resize_token_embeddings(8)
    with pytest.raises(ConfigError, match=r"the critic .*knows 8\. Give one with the same vocab"):
        agl_torch.PPO(model="unused", critic=narrow).build_critic(model)
