"""No key stands in what agl writes down: logs, failures, configurations, messages, addresses."""

import json
import logging
import os
import re
import time
from pathlib import Path

import click
import pytest
from hypothesis import given, strategies as st
from opentelemetry import trace
from tests.interpreter import AGL, python
from tests.stores import ask

import agl
from agl.cli import cli, main
from agl.utils import secrets
from agl.utils.logs import setup_logging
from agl.utils.secrets import hide, is_secret
from agl_runs.secrets import expand, redact

KEY = "pk-8f3a6c1e5b7d"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests made known is not known here."""
    monkeypatch.setattr(secrets, "_met", {})


SECRETS = (
    *("api_key", "X-Api-Key", "OPENAI_API_KEY", "private_key", "token", "hf_token", "apiKey"),
    *("AGL_SERVER_TOKEN", "client_secret", "password", "vertex_credentials", "Authorization"),
    *("OPENAI_API_KEY_2", "password2", "extra_headers", "MY_KEY", "STRIPE2_KEY", "MY_KEY_2"),
)
OTHERS = (
    *("key", "reward_key", "primary_key", "max_tokens", "pad_token", "eos_token", "model", "KEY"),
    *("MONKEY", "KEY_NAMES", "TURKEY_URL", "stop_tokens", "time_to_first_token_seconds"),
    *("eos_token_id", "tokenizer", "author", ""),
)


@pytest.mark.parametrize("name", [*SECRETS, *OTHERS])
def test_names_of_secrets_are_told_from_others(name: str) -> None:
    assert is_secret(name) == (name in SECRETS)


def test_a_configuration_shows_no_secret() -> None:
    shown = redact(
        {
            "extra_headers": {"Ocp-Apim-Subscription-Key": "S1", "X-Auth": "S2", "Else": "S3"},
            "urls": ["http://u:S4@h/", "amqp://:S5@h"],
            "args": ["--model", "m", "--hub-token=S6", "--key=${KEY}"],
            "query": "http://h/?model=m&api_key=S7#there",
            "env": ["OPENAI_API_KEY=S8", "MODEL=m", "api_key=S9"],
            "command": "OPENAI_API_KEY=S10 vllm serve --api-key=S11 --api-key=${API_KEY}",
            "azure_ad_token": "S12",
            "credentials": {"user": "S13", "of": ["S14"]},
        }
    )
    assert not any(f"S{number}" in json.dumps(shown) for number in range(1, 15))
    assert shown["args"] == ["--model", "m", "--hub-token=***", "--key=${KEY}"]
    assert shown["query"] == "http://h/?model=m&api_key=***#there"
    assert shown["command"].endswith(" vllm serve --api-key=*** --api-key=${API_KEY}")
    assert shown["urls"][0] == "http://u:***@h/"


def test_what_is_no_secret_is_shown_as_it_is() -> None:
    plain = {
        "model": "gpt-4.1-mini",
        "reward_key": "accuracy_of_2024",
        "pad_token": "<|endoftext|>",
        "endpoint": "http://me@host:8000/v1?limit=3",
        "args": ["--key", "name", "-v"],
        "prompt": "say that token='many', --tokens=2",
        "text": "a=b, tokens: 'many' and Basic authentication; see http://host/token/list",
    }
    assert redact(plain) == plain


SERVICE_KEYS = (
    *(
        "sk-very-secret-1234567890",
        r"sk-[A-Za-z0-9]{47}7",
        r"sk-(proj|ant-api03)-[\w-]{40}1[\w-]{20}",
    ),
    *(r"hf_[A-Za-z]{34}", r"gh[opusr]_[A-Za-z0-9]{36}", r"github_pat_\w{22}_\w{59}"),
    r"(AKIA|ASIA)[A-Z2-7]{16}",
)


@given(st.one_of(*(st.from_regex(re.compile(one, re.A), fullmatch=True) for one in SERVICE_KEYS)))
def test_the_keys_of_known_services_are_hidden_wherever_they_stand(key: str) -> None:
    for text in ("{}", "key={}, and more", 'asked with "{}".', "http://h/?k={}&x=1", "[{}]"):
        assert key not in hide(text.format(key))
        assert hide(text.format("")) == text.format("")
    assert redact({"env": {"OF_MINE": key}}) == {"env": {"OF_MINE": "***"}}


WORDS = ("task", "risk", "hf", "ghp", "model", "sk", "run", "v2", "2026", "AKIA", "learn", "0.1")


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), st.sampled_from("-_./ "))
def test_an_ordinary_value_is_shown(words: list[str], between: str) -> None:
    value = between.join(words)
    assert redact({"run_name": value, "reward_key": value, "MODEL": value}) == {
        **{"run_name": value, "reward_key": value},
        "MODEL": value,
    }


@pytest.mark.parametrize(
    "value",
    [
        *("sk-learn", "sk-ablation-of-lr-and-more-things", "task-2026-11-29-with-long-names-12345"),
        *("hf_transformers", "hf_" + "a" * 33, "ghp_short", "github_pat_name", "AKIA", "AKIAN"),
        *(
            "meta-llama/Llama-3.1-8B-Instruct",
            "d41d8cd98f00b204e9800998ecf8427e",
            "disk-12345678901234567890",
        ),
    ],
)
def test_what_only_begins_as_a_key_is_shown(value: str) -> None:
    assert hide(value) == value


@pytest.mark.parametrize("value", ["postgres", "disabled", "accuracy_of_2024"])
def test_words_of_the_environment_are_shown(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", value)
    text = f"store: {value} is what it says, and token='{value}'"
    assert hide(text) == text


def test_what_came_from_a_variable_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_MINE", KEY)
    monkeypatch.setenv("A_TOKEN", "hunter-two")
    monkeypatch.setenv("THE_MODEL", "some-model-of-mine-4")
    read = {"password": ["${OF_MINE}"], "login": "${A_TOKEN}", "kind": "${THE_MODEL}"}
    expand(read, "agl.yaml:")
    assert hide(f"{KEY} hunter-two some-model-of-mine-4") == "*** *** some-model-of-mine-4"


@pytest.mark.parametrize(
    ("url", "value", "password"),
    [("http://user:${OF_MINE}@host/x", KEY, KEY), ("${OF_MINE}", f"redis://:{KEY}@host:6379", KEY)],
)
def test_a_password_in_an_address_is_hidden_wherever_it_stands(url, value, password, monkeypatch):
    monkeypatch.setenv("OF_MINE", value)
    assert expand({"url": url}, "agl.yaml:") == {"url": url.replace("${OF_MINE}", value)}
    assert hide(f"the host knows no {password}") == "the host knows no ***"


def test_a_value_that_begins_as_another_is_hidden_whole() -> None:
    secrets.learn(KEY)
    secrets.learn(f"{KEY}-longer")
    assert hide(f"{KEY}-longer {KEY}") == "*** ***"


def test_a_handler_of_ones_own_and_a_file_get_no_key(tmp_path: Path) -> None:
    secrets.learn(KEY)
    got: list[str] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                got.append(self.format(record))
            except TypeError as error:
                got.append(str(error))

    setup_logging(extra_handlers=[Own()], files=str(tmp_path / "agl.log"), console=False)
    below = logging.getLogger("agl.some.module")
    below.info("asked %s with %s", "http://agl:other@host/x", {"authorization": KEY})
    try:
        raise ValueError(f"no such key: {KEY}")
    except ValueError:
        below.exception("it failed")
    below.info("wrong %d", "arguments")  # handlers say so, and go on
    below.info("plain %s", "words")
    for handler in logging.getLogger("agl").handlers:
        handler.close()
    written = (tmp_path / "agl.log").read_text()
    for text in ("\n".join(got), written):
        assert KEY not in text
        assert "other" not in text
        assert "asked http://agl:***@host/x with {'authorization': '***'}" in text
        assert "ValueError: no such key: ***" in text
        assert "plain words" in text
    assert "%d format: a real number is required" in "\n".join(got)


async def test_a_failure_is_stored_without_the_key_that_a_provider_repeats(run_one, store) -> None:
    llm = agl.LLM(endpoint="http://h/v1", model="m", api_key=KEY)

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        with agl.operation(part="first"):
            raise RuntimeError(f"401: {llm.api_key} is wrong, asked http://u:p@h/?key=1")

    await store.add_resources({"llm": llm})
    attempt = await run_one(agent, store)
    assert attempt.error.message == "401: *** is wrong, asked http://u:***@h/?key=1"
    assert KEY not in attempt.error.traceback
    assert "in agent" in attempt.error.traceback
    (span,) = await store.query_spans(attempt.rollout_id)
    assert span.status.description == attempt.error.message
    assert span.events[0].attributes["exception.message"] == attempt.error.message
    assert KEY not in span.model_dump_json()


async def test_what_an_agent_records_stays_but_for_the_token_in_its_address(run_one, store) -> None:
    llm = agl.ProxyLLM(endpoint="http://h:1/v1", model="m", asks_for_token=True)
    address = ""

    @agl.rollout
    async def agent(task: str, llm: agl.LLM) -> float:
        nonlocal address
        address = llm.endpoint
        with trace.get_tracer("http").start_as_current_span("POST") as span:
            span.set_attribute("url.full", f"{address}/chat/completions?x=1")
            span.set_attribute("metadata", json.dumps({"api_base": address}))
            span.set_attribute("answer", f"{KEY} and Bearer {KEY} and api_key='{KEY}'")
            raise ConnectionError(f"cannot reach {address}")

    await store.add_resources({"llm": llm})
    attempt = await run_one(agent, store)
    bare, _, token = address.removesuffix("/v1").rpartition("/")
    assert len(token) > 24
    spans = await store.query_spans(attempt.rollout_id)
    (span,) = (span for span in spans if span.name == "POST")
    assert span.attributes["url.full"] == f"{bare}/***/v1/chat/completions?x=1"
    assert json.loads(str(span.attributes["metadata"])) == {"api_base": f"{bare}/***/v1"}
    assert span.attributes["answer"] == f"{KEY} and Bearer {KEY} and api_key='{KEY}'"
    assert span.events[0].attributes["exception.message"] == f"cannot reach {bare}/***/v1"
    written = [span.model_dump_json() for span in spans] + [attempt.model_dump_json()]
    assert not any(token in text for text in written)


AGENT = """
import agl

@agl.rollout
def agent(task: dict, llm: agl.LLM) -> float:
    raise RuntimeError(f"no such key: {llm.api_key}")
"""

CONFIG = """
agent: its_agent:agent
train: tasks.jsonl
algorithm: baseline
strategy: {strategy}
run_dir: out
resources:
  llm: {{type: llm, endpoint: "http://u:{password}@127.0.0.1/v1", model: m, api_key: {key}}}
"""


@pytest.mark.parametrize("strategy", ["shm", "cs"])
def test_a_run_leaves_keys_in_its_store_alone(tmp_path: Path, strategy: str) -> None:
    password = "pass-27182818"
    (tmp_path / "its_agent.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text('{"x": 1}\n')
    config = CONFIG.format(strategy=strategy, password=password, key=KEY)
    (tmp_path / "agl.yaml").write_text(config)
    environment = {**os.environ, "AGL_SERVER_PORT": "0"}
    done = python(*AGL, "run", "agl.yaml", "--debug", cwd=tmp_path, env=environment)
    assert done.returncode == 1
    assert "agent: RuntimeError" in done.stderr
    texts = {"stdout": done.stdout, "stderr": done.stderr}
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file() and not file.name.startswith("store.db"):
            texts[file.name] = file.read_text()
    assert "config.yaml" in texts
    for what, text in texts.items():
        assert not any(secret in text for secret in (KEY, password)), what

    file = tmp_path / "out" / "store.db"
    (rollout,) = ask(file, lambda store: store.query_rollouts())
    (attempt,) = ask(file, lambda store: store.query_attempts(rollout.rollout_id))
    assert attempt.error.message == "no such key: ***"


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_the_command_line_shows_no_key(debug, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (tmp_path / "its_agent.py").write_text(AGENT)
    (tmp_path / "agl.yaml").write_text("agent: its_agent:agent\nrunners: ${OPENAI_API_KEY}\n")
    with pytest.raises(SystemExit):
        main(["run", "agl.yaml", *debug])
    shown = capsys.readouterr()
    assert "runners" in shown.err
    assert KEY not in shown.err + shown.out


def test_a_very_long_error_holds_up_nobody_and_shows_no_key() -> None:
    secrets.learn(KEY)
    text = f"a='{'b' * 50}' {KEY} " * 800_000  # 60 MB
    begin = time.process_time()
    hidden = hide(text)
    assert time.process_time() - begin < 2
    assert KEY not in hidden


@pytest.mark.parametrize(
    "piece",
    ["a", "a='", "a=\"b='", "a.b-", "://", "://a:", "/attempt/", "-", "a:", "Bearer ", "?", "A="],
)
def test_text_of_an_agent_costs_a_time_that_grows_with_its_length(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        taken: list[float] = []
        for _ in range(3):
            begin = time.process_time()
            hide(text)
            taken.append(time.process_time() - begin)
        return min(taken)

    assert seconds(64_000) < max(0.02, 16 * seconds(8_000))


def test_every_command_that_takes_a_store_server_names_the_variable_of_its_token() -> None:
    with click.Context(cli) as context:
        commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
        texts = {name: one.get_help(context) for name, one in commands.items() if one is not None}
    words = ("--url", "--store", "store server")
    taking = [name for name, text in texts.items() if any(word in text for word in words)]
    assert {"ui", "show", "export", "token", "gateway"} <= {*taking}
    variables = dict.fromkeys(taking, "AGL_SERVER_TOKEN")
    variables |= dict.fromkeys(("train", "evaluate"), "AGENT_LIGHTNING_API_KEY")
    assert [name for name in taking if variables[name] not in texts[name]] == []
