"""The parts of ``verl_cpu`` and ``running`` by themselves; nothing of Ray is started."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid

import pytest
from tests.interpreter import python

pytest.importorskip("verl")

import running
import torch
from verl_cpu import cpu_config, use_cpu
from verl_cpu.config import PLUGIN
from verl_cpu.inference_server import InferenceServer, Sampling, sample_token

pytestmark = pytest.mark.timeout(300)
LOGPROBS = {"logprobs": True, "ignore_eos": True, "max_tokens": 8}


@pytest.fixture
def server(tiny_model):
    return InferenceServer(str(tiny_model), response_length=6)


async def generate(server, **params):
    return await server.generate([5, 6, 7], params, request_id="r")


def test_importing_the_package_imports_neither_torch_nor_verl():
    code = (
        "import sys, verl_cpu, agl_verl.versions; "
        "verl_cpu.cpu_config('m'); verl_cpu.use_cpu(); "
        "print([m for m in ('torch', 'verl', 'ray', 'transformers') if m in sys.modules])"
    )
    assert python("-c", code, check=True).stdout.strip() == "[]"


def test_verl_takes_the_cpu_only_when_told():
    from verl.utils.device import get_device_name

    assert get_device_name() == "cpu"
    code = "from verl.utils.device import get_device_name; print(get_device_name())"
    untold = {k: v for k, v in os.environ.items() if k != "VERL_PLATFORM"}
    done = python("-W", "ignore", "-c", code, check=True, env=untold)
    assert done.stdout.split()[-1] == "cuda"


def test_verl_must_be_told_before_it_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, PLUGIN)
    with pytest.raises(RuntimeError, match=r"imported before use_cpu\(\)"):
        use_cpu()


def test_sampled_tokens_encode_to_themselves(tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokens = torch.randint(4, len(tokenizer), (500,)).tolist()
    assert tokenizer(tokenizer.decode(tokens))["input_ids"] == tokens


def test_a_conversation_is_a_prefix_of_its_continuation(tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)

    def ids(messages):
        made = tokenizer.apply_chat_template(messages, return_dict=True, add_generation_prompt=True)
        return made["input_ids"]

    first = [{"role": "user", "content": "Say  1,\nplease."}]
    prompt = ids(first)
    answer = tokenizer("one")["input_ids"] + [tokenizer.eos_token_id]
    later = [*first, {"role": "assistant", "content": "one"}, {"role": "user", "content": "2"}]
    assert ids(later)[: len(prompt + answer)] == prompt + answer


def test_wrong_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match="mode is 'asynch'"):
        cpu_config("m", mode="asynch")
    with pytest.raises(ValueError, match="ranks must be at least 1"):
        cpu_config("m", ranks=0)


def test_overrides_are_laid_over_single_keys():
    config = cpu_config("m", actor_rollout_ref={"actor": {"optim": {"lr": 1.0}}})
    actor = config["actor_rollout_ref"]["actor"]
    assert actor["optim"]["lr"] == 1.0
    assert actor["strategy"] == "fsdp2"


async def test_server_gives_the_log_probabilities_of_its_model(server):
    out = await generate(server, **LOGPROBS, temperature=0.7)
    assert len(out.token_ids) == 8
    assert out.stop_reason == "completed"
    with torch.no_grad():
        logits = server.model(torch.tensor([[5, 6, 7, *out.token_ids]])).logits[0, 2:-1]
    expected = torch.log_softmax(logits / 0.7, -1)
    for row, token, logprob in zip(expected, out.token_ids, out.log_probs, strict=True):
        assert logprob == pytest.approx(float(row[token]), abs=1e-5)


async def test_server_stops_at_the_end_token_other_tokens_and_length(server, tiny_model):
    model = server.model
    end = model.config.eos_token_id
    for seed in range(20):  # the end comes as any token of some hundred
        sampling = {"max_tokens": 400, "temperature": 1.0, "seed": seed}
        ends = await server.generate([5], sampling, request_id="r")
        if ends.token_ids[-1] == end:
            break
    assert ends.token_ids.index(end) == len(ends.token_ids) - 1
    assert ends.log_probs is None  # not asked for
    greedy = await generate(server, **LOGPROBS, temperature=0)
    again = await generate(server, **LOGPROBS, temperature=0)
    assert greedy.token_ids == again.token_ids
    stops = {"stop_token_ids": greedy.token_ids[2:3]}
    stopped = await generate(server, **LOGPROBS, temperature=0, **stops)
    assert stopped.token_ids == greedy.token_ids[:3]
    assert len((await generate(server, ignore_eos=True)).token_ids) == 6  # response_length


async def test_a_seed_makes_sampling_repeat(server):
    one = await generate(server, **LOGPROBS, seed=3)
    two = await generate(server, **LOGPROBS, seed=3)
    other = await generate(server, **LOGPROBS, seed=4)
    assert one == two
    assert other.token_ids != one.token_ids


def test_top_k_and_top_p_leave_the_likeliest():
    # exp of these: 4, 2, 1, 1 of 8.
    logits = torch.tensor([4.0, 2.0, 1.0, 1.0]).log()
    for limit in ({"top_k": 2}, {"top_p": 0.7}):
        drawn = {sample_token(logits, Sampling(1, **limit), None) for _ in range(200)}
        assert {token for token, _ in drawn} == {0, 1}
        for token, logprob in drawn:  # of what is left: 4/6 and 2/6
            assert logprob == pytest.approx(torch.tensor([4 / 6, 2 / 6]).log()[token].item())


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temprature": 1.0}, "unknown sampling parameters"),
        ({"repetition_penalty": 1.2}, "implements only 1"),
        ({"n": 2}, "implements only 1"),
    ],
)
async def test_parameters_that_it_does_not_implement_are_refused(server, params, message):
    with pytest.raises(ValueError, match=message):
        await generate(server, **params)


async def test_a_prompt_without_room_and_images_are_refused(server):
    with pytest.raises(ValueError, match="no room"):
        await server.generate([5] * server.max_model_len, {}, request_id="r")
    with pytest.raises(ValueError, match="text only"):
        await server.generate([5], {}, request_id="r", image_data=[b""])


async def in_flight(server):
    """A call that is running for certain: its first token waits for us."""
    task = asyncio.create_task(generate(server, max_tokens=300, ignore_eos=True, logprobs=True))
    while not server._running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return task


async def test_calls_are_cut_off_at_a_weight_update_and_say_so(server):
    await server.set_weights(server.model.state_dict(), 3)
    task = await in_flight(server)
    await server.abort_all_requests()
    out = await task
    assert out.stop_reason == "aborted"
    assert len(out.token_ids) == len(out.log_probs) < 300
    assert out.extra_fields == {"global_steps": 3}
    later = asyncio.create_task(generate(server, max_tokens=2))
    await asyncio.sleep(0.05)
    assert not later.done()  # waits for the weights
    await server.set_weights(server.model.state_dict(), 4)
    await server.resume_generation()
    assert (await later).extra_fields == {"global_steps": 4}


async def test_a_server_that_leaves_rejects_instead_of_waiting(server):
    await server.abort_all_requests(reject_request=True)
    out = await generate(server, max_tokens=2)
    assert out.stop_reason == "aborted"
    assert out.token_ids == []


async def test_weights_are_not_changed_under_a_call(server):
    task = await in_flight(server)
    with pytest.raises(RuntimeError, match="1 calls are in flight"):
        await server.set_weights(server.model.state_dict(), 1)
    await server.abort_all_requests()
    await task


async def test_weights_that_do_not_fit_are_refused(server):
    state = dict(server.model.state_dict())
    state["stray"] = state.pop("lm_head.weight")
    with pytest.raises(RuntimeError, match=r"missing \['lm_head.weight'\], unknown \['stray'\]"):
        await server.set_weights(state, 1)


async def test_a_sleeping_server_answers_no_calls(server):
    task = await in_flight(server)
    await server.sleep()
    assert (await task).stop_reason == "aborted"
    with pytest.raises(RuntimeError, match="sleeps"):
        await generate(server, max_tokens=2)
    await server.wake_up()
    assert len((await generate(server, max_tokens=2, ignore_eos=True)).token_ids) == 2


async def test_weights_travel_by_copy():
    from verl_cpu.checkpoint import RayStoreCheckpointEngine
    from verl_cpu.inference_server import own_copy

    live = torch.ones(3)
    sent = own_copy(live)
    live.add_(1)
    assert sent.tolist() == [1, 1, 1]
    actors, rollouts = RayStoreCheckpointEngine.build_topology(2, 1, [])
    assert actors == {"rank": [0, 1]}
    assert rollouts == {"rank": [2]}


def test_a_process_that_outlives_its_run_is_seen_and_ended(monkeypatch):
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.0)
    mark = uuid.uuid4().hex
    given = {"env": os.environ | {running.MARK: mark}, "start_new_session": True}
    orphan = subprocess.Popen(["sleep", "600"], **given)
    while not running.marked(mark):  # /proc shows its environment a little later
        time.sleep(0.01)
    assert running.end_all(mark) == ["sleep 600"]
    assert orphan.wait(10) == -signal.SIGKILL
    assert running.end_all(mark) == []
