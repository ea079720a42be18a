"""Whose number a token's is, and what became of it, as a page and ``agl explain`` say it."""

import html
import json
import re
import shlex
import shutil

import pytest

from agl_learning.run.folder import mark_lost
from agl_runs.records import RunStart
from agl_runs.store import begin_run

from .grouped import TOKENS, fill_with_group
from .long_trace import fill_with_long_trace
from .stores import call_span, filled, page_of as read, reward_span

OF_PPO = {"because": "gae, the mean of 3 tokens", "estimator": "gae", "is_mean": True}
OF_ONES_OWN = {"because": "mine:half; its reward: 1", "estimator": "mine:half"}


def call_of(address):
    """The id of the only call on a rollout's page."""
    return re.search(r'id="call-([^"]+)"', read(address))[1]


def test_tokens_are_shown_as_text_by_the_tokenizer_that_a_run_keeps(serve, trained, tmp_path):
    address = f"{serve(trained / 'store.db')}/s/run/rollouts?step=4&mode=train"
    found = re.search(r'href="([^"]+/rollouts/ro-[^"]+)"', read(address))[1]
    page = f"{address.partition('/s/')[0]}{found}"
    text = read(f"{page}?call={call_of(page)}&token=0&colour=mask")
    word = re.search(r'role-assistant.*?class="words"[^>]*>([^<]+)<', text)[1]
    sampled = re.search(r'title="token (\d+), log-probability [^"]+">([^<]+)</a>', text)
    assert sampled[2] == word.split()[0]
    assert f"Why: token 0 “{sampled[2]}” (id {sampled[1]})" in text
    assert re.search(r'<span class="given" title="token \d+">[^<0-9]+</span>', text)
    alone = tmp_path / "run/store.db"
    alone.parent.mkdir()
    shutil.copy(trained / "store.db", alone)
    kept = next(trained.glob("checkpoints/*/**/tokenizer.json")).read_text()
    strip = {"type": "Strip", "content": "a", "start": 0, "stop": 99}
    all_a = {"type": "Replace", "pattern": {"Regex": "."}, "content": "a"}
    panic = {**json.loads(kept), "decoder": {"type": "Sequence", "decoders": [all_a, strip]}}
    (alone.parent / "tokenizer.json").write_text(kept)  # where no run keeps one
    (alone.parent / "checkpoints").mkdir()
    (gone := alone.parent / "checkpoints/gone").mkdir()
    (gone / "tokenizer.json").symlink_to("removed meanwhile")
    url = f"{serve(alone)}{found}"
    assert "Numbers are token ids" in read(url)
    for broken in ("{", json.dumps(panic)):  # half of it, and what no text has
        (alone.parent / "checkpoints/tokenizer.json").write_text(broken)
        assert "Numbers are token ids" in read(url)


def token_of(serve, file, rollout_id):
    """Addresses of a rollout, and of the words on one of the tokens of its only call; and that."""
    address = f"{serve(file)}/s/{file.stem}/rollouts/{rollout_id}"
    call = call_of(address)
    return address, f"?call={call}&token=1", ["--call", call, "--token", "1"]


def test_an_estimator_of_ones_own_is_shown_without_a_mean_that_it_does_not_use(serve, tmp_path):
    file = tmp_path / "own.db"
    address, token, _ = token_of(serve, file, fill_with_group(file, OF_ONES_OWN))
    text = read(f"{address}{token}")
    assert "standard deviation" not in text
    assert "<dt>Group</dt><dd>all calls of the sibling rollouts: 2 of 2 rollouts" in text


def test_a_mean_over_tokens_is_not_said_to_be_that_of_a_token(serve, agl, tmp_path):
    file = tmp_path / "ppo.db"
    rollout_id = fill_with_group(file, OF_PPO, algorithm="ppo")
    address, token, of_token = token_of(serve, file, rollout_id)
    text = read(f"{address}{token}&colour=advantage&again=1")
    assert "mean over the tokens of the call; each had its own, which is not kept" in text
    assert "one number for all" not in text
    assert "shared by all" not in text
    assert not re.search(r'class="(up|down)\d" href', text)
    told = json.loads(read(f"{address}/why.json{token}&again=1"))
    assert told["num_shared"] == 0
    terms = {one["name"]: one["value"] for one in told["terms"]}
    assert {"event": 1.0, "estimator": None, "length": None}.items() <= terms.items()
    assert not {"baseline", "scale"} & terms.keys()
    # How grpo would have it is no difference to what ppo had.
    assert all(one["same"] for one in told["again"]["numbers"])
    assert "'gae' needs what models say of tokens" in told["again"]["problem"]
    words = agl("explain", rollout_id, *of_token, "--path", str(file)).out
    assert "mean       over the tokens of the call; each had its own, which is not kept" in words
    assert "shared     by all" not in words


def test_an_account_behind_which_the_run_went_back_is_told_as_lost(serve, agl, tmp_path):
    file = tmp_path / "lost.db"
    rollout_id = fill_with_group(file)

    async def lose(store):
        await begin_run(store, RunStart(run_id="r", algorithm="toy"))
        await mark_lost(store, "r", lambda part: True)

    filled(file, lose)
    address, token, of_token = token_of(serve, file, rollout_id)
    assert "lost: the run went back behind it" in read(address)
    assert "lost: the run went back behind this step" in read(f"{address}{token}")
    for words in (["show", rollout_id], ["explain", rollout_id, *of_token]):
        said = agl(*words, "--path", str(file))
        assert (said.code, "lost, the run went back behind it" in said.out) == (0, True)


async def fill_with_open(store, status):
    """A rollout with a call and a reward that no algorithm has accounted for."""
    rollout = await store.start_rollout("t", mode="val", worker_id="w")
    call = call_span(rollout, [{"role": "user", "content": "q"}], "abc", **TOKENS)
    await store.add_many_spans([call, reward_span(rollout, 1.0)])
    if status != "running":
        await store.update_attempt(rollout.rollout_id, "latest", status=status)
    return rollout.rollout_id


@pytest.mark.parametrize("status", ["running", "failed", "succeeded"])
def test_what_nobody_accounted_for_is_open(serve, agl, tmp_path, status):
    file = tmp_path / "open.db"
    rollout_id = filled(file, lambda store: fill_with_open(store, status))
    address, token, _ = token_of(serve, file, rollout_id)
    text = read(f"{address}{token}&colour=mask")
    assert 'title="no algorithm has accounted for it">open</span>' in text
    assert re.findall(r'<a class="(\w+)" href="[^"]*token=\d[^"]*#why', text) == ["open"] * 3
    assert ">trained</span> <" not in text.split('class="ids"')[0]
    for words in ("not trained: ", "Not trained", "none was trained"):
        assert words not in text
    told = json.loads(read(f"{address}/why.json{token}"))
    assert (told["bin"]["name"], told["bin"]["reason"]) == ("open", "")
    words = agl("show", rollout_id, "--path", str(file)).out
    assert "no algorithm has accounted for it" in words
    assert "not trained" not in words
    assert "excluded" not in words


@pytest.mark.parametrize("turn", ["1", "621"])
def test_the_command_under_why_tells_of_the_same_token(serve, agl, here, turn):
    file = here / "long.db"
    rollout_id = fill_with_long_trace(file, 2_300, every=2)
    call = f"{2 * int(turn) + 1:016x}"
    address = f"{serve(file)}/s/long/rollouts/{rollout_id}"
    text = read(f"{address}?turn={turn}&call={call}&token=3")
    command = shlex.split(html.unescape(re.search(r"<code>agl (explain [^<]*)</code>", text)[1]))
    # Typed where a newer run lies, which a command without a store would take.
    newer = here / "agl-runs/newer/store.db"
    newer.parent.mkdir(parents=True)
    fill_with_long_trace(newer, 4)
    told = json.loads(agl(*command).out)
    assert (told["why"]["call"]["call_id"], told["why"]["place"]) == (call, 3)
    shown = json.loads(read(f"{address}/why.json?turn={turn}&call={call}&token=3"))
    assert shown["bin"]["row"] is None  # the page has read some of the calls
