"""Each Python block of the documents of Agent Lightning, and what becomes of it.

A page's block uses data, models and names that the page does not show. They are given here; the
block itself runs as it stands, but for ports and for addresses of models.
"""

import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

SEEDS = Path(os.environ.get("AGL_SEEDS", Path(__file__).parents[3] / "shared/seeds"))
"""The documents are not ours to copy: the blocks run where they lie."""
documents = pytest.mark.skipif(not SEEDS.is_dir(), reason="needs the documents of the seeds")
GUIDES = "003_guides_and_example_readmes.md"
REFERENCE = "002_fd997ffe83de4abb.txt"
"""Of a training server and its client; tests/examples/test_seed_service.py runs its blocks."""
CONCEPTS = "001_242a460688c3a35b.txt"
LOGGED = "004_aa51c9a79f5ddfc7.txt"


def blocks_of(document: str, languages: str = "python") -> dict[int, str]:
    """The line of its fence -> a block."""
    text = (SEEDS / document).read_text(encoding="utf-8")
    fence = re.compile(rf"^( *)```(?:{languages})\n(.*?)^\1```", re.M | re.S)
    return {text[: m.start()].count("\n") + 1: textwrap.dedent(m[2]) for m in fence.finditer(text)}


@dataclass(frozen=True)
class Block:
    """One block: what it needs, and what must come of it."""

    line: int
    """Where its fence stands in the document."""
    document: str = GUIDES
    given: str = ""
    """Code that runs before: the data, models and names that the page speaks of."""
    after: tuple[int, ...] = ()
    """Blocks of the page whose code comes before this one's."""
    then: str = ""
    """Code that runs after it: it calls what the block defines and looks at what comes of it."""
    replaced: tuple[tuple[str, str], ...] = ()
    """Text of the block (ports, data, models) and what stands there instead."""
    refused: str = ""
    """What the error says where agl does otherwise."""
    no_program: str = ""
    """Why there is nothing to run."""
    needs: tuple[str, ...] = ()
    """Distributions that the block imports and that are not ours."""


APO_AGENT = """
import agentlightning as agl
@agl.rollout
def apo_rollout(task: str, prompt_template: agl.PromptTemplate) -> float:
    return float(task in prompt_template.format(any_question=task))
"""
ROOMS = """
from typing import TypedDict
import agentlightning as agl
class RoomSelectionTask(TypedDict, total=False):
    date: str
    time: str
    duration_min: int
    attendees: int
    expected_choice: str
client, final_message = None, "A103"
def room_selection_grader(*arguments): return float(arguments[-2] == arguments[-1])
def prompt_template_baseline():
    return agl.PromptTemplate(template="Book a room: {date} {time}", engine="f-string")
"""
IN_A_TRACE = """
import asyncio
import agentlightning as agl
from agentlightning import *
tracer, store = agl.OtelTracer(), agl.InMemoryLightningStore()
tracer.init()
tracer.init_worker(0, store)
"""
TRACED = """
rollout = await store.start_rollout("task")
ids = dict(rollout_id=rollout.rollout_id, attempt_id=rollout.attempt.attempt_id)
async with tracer.trace_context("page", store=store, **ids):
"""
STORE = """
import agentlightning as agl
store = agl.InMemoryLightningStore()
"""
ALGORITHM = """
import agentlightning as agl
class Once(agl.Algorithm):
    async def run(self, train_dataset=None, val_dataset=None): pass
algorithm = Once()
"""
NO_NAME = "it uses no name of agentlightning"

BLOCKS = (
    # Debugging
    Block(224, then="import logging; assert logging.getLogger('agl').level == 10"),
    Block(244, given=APO_AGENT),
    Block(257, given=APO_AGENT, after=(244,), then="assert rollout.status == 'succeeded'"),
    Block(
        268,
        given=APO_AGENT,
        after=(244, 257),
        then="import agentlightning.emitter as e\n"
        "assert e.find_final_reward(await store.query_spans(rollout.rollout_id)) == 1.0",
    ),
    Block(275, no_program="what a block printed"),
    Block(282, no_program="what a block printed"),
    Block(
        312,
        replaced=(("8081", "$port"), ("8082", "$port2"), ("http://localhost:8080/v1", "$model")),
        then="""
task = asyncio.create_task(serve_llm_proxy())
async def answers():
    while True:
        try:
            async with aiohttp.ClientSession() as session:
                async with session.get("http://localhost:$port2/health") as response:
                    return response.status
        except aiohttp.ClientError:
            assert not task.done(), task.result()
            await asyncio.sleep(0.05)
assert await answers() == 200
task.cancel()
""",
    ),
    Block(
        342,
        given="import asyncio, aiohttp, os, agentlightning as agl",
        replaced=(("8082", "$port"),),
        then="""
proxy = agl.LLMProxy(port=$port, store=agl.InMemoryLightningStore(), model_list=[
    {"model_name": "Qwen/Qwen2.5-0.5B-Instruct", "litellm_params": {
        "model": "hosted_vllm/Qwen/Qwen2.5-0.5B-Instruct", "api_base": "$model"}}])
await proxy.start()
try:
    await test_llm_proxy()
finally:
    await proxy.stop()
""",
    ),
    Block(371, given=APO_AGENT, after=(244, 257)),
    Block(400, no_program="pseudocode of the runner"),
    Block(422, given=APO_AGENT),
    Block(
        493,
        given="import agentlightning as agl",
        replaced=(("4747", "$port"), (", ...", "")),
        then="assert isinstance(trainer.store, agl.LightningStoreClient)",
    ),
    # Emitters
    Block(
        548,
        given="""
from agentlightning import PromptTemplate
def generate_plan(task, prompt): return ["look", "answer"]
def grade_plan(plan): return 0.5
def execute_plan(plan): return "done"
def custom_grade_final_result(result, expected): return float(result == expected)
""",
        then="""
tracer, store = agl.OtelTracer(), agl.InMemoryLightningStore()
runner = agl.LitAgentRunner(tracer)
with runner.run_context(agent=multi_step_agent, store=store):
    rollout = await runner.step(
        {"expected_output": "done"},
        resources={"p": PromptTemplate(template="x", engine="f-string")},
    )
from agentlightning.emitter import find_final_reward, find_reward_spans
spans = await store.query_spans(rollout.rollout_id)
assert find_final_reward(spans) == 1.0 and len(find_reward_spans(spans)) == 2
""",
    ),
    Block(581, given=IN_A_TRACE, then="in_trace"),
    Block(621, given=IN_A_TRACE, then="in_trace"),
    Block(
        646,
        given="def perform_search(*a): return [1]\ndef eval_safely(e): return 2.0",
        then=IN_A_TRACE
        + TRACED
        + """\
    assert search_documents("x") == [1] and execute_calculation("1 + 1") == 2.0
names = [span.name for span in await store.query_spans(rollout.rollout_id)]
assert names.count("agentlightning.operation") == 2, names
""",
    ),
    Block(661, given=IN_A_TRACE),
    Block(670, given=IN_A_TRACE, then="assert any_weird_name_i_dont_want"),
    Block(678, given=IN_A_TRACE + "\ndef search_web(*a): return ['found']", then="in_trace"),
    Block(
        687,
        given="import agentlightning as agl",
        then="assert local_test() == 'Not sent to backend'",
    ),
    Block(697, given=IN_A_TRACE, then="in_trace"),
    Block(
        718,
        given=IN_A_TRACE
        + "from agentlightning.utils.otel import make_link_attributes"
        + TRACED
        + """\
    with operation(conversation_id="chat-42"):
        emit_annotation(make_link_attributes({"conversation_id": "chat-42"}))
found = {span.name: span for span in await store.query_spans(rollout.rollout_id)}
""",
        replaced=(
            ("= ...  # Span from", "= found['agentlightning.annotation']  # Span from"),
            ("= [...]  # list", "= [found['agentlightning.operation']]  # list"),
        ),
    ),
    Block(
        733,
        given=IN_A_TRACE
        + "\nfrom types import SimpleNamespace\nprompt = 'x'\n"
        + "def call_llm(prompt): return SimpleNamespace(id='chatcmpl-1')",
        then="in_trace",
    ),
    # Scaling out
    Block(
        852,
        given="""
import sys, types, os
import agentlightning as agl
verl_config = {"data": {"train_batch_size": 2}}
calc = types.ModuleType("calc_agent")
@agl.rollout
def calc_agent(task: dict) -> float: return 1.0
calc.calc_agent = calc_agent
sys.modules["calc_agent"] = calc
import pyarrow, pyarrow.parquet
os.makedirs("data")
for name in ("train", "test"):
    pyarrow.parquet.write_table(pyarrow.table({"question": ["1 + 1"]}), f"data/{name}.parquet")
import agl_verl
""",
        needs=("verl", "datasets"),
    ),
    Block(886, given="from agentlightning import ExecutionEvent, LightningStore"),
    Block(893, given="from agentlightning import ExecutionEvent, LightningStore"),
    Block(904, then="assert strategy.n_runners == 4"),
    Block(932, given=ALGORITHM, then="assert trainer.strategy.server_port == 9999"),
    Block(942, given=ALGORITHM),
    Block(957, given=ALGORITHM, then="assert isinstance(trainer.tracer, agl.OtelTracer)"),
    Block(961, given=ALGORITHM, then="assert isinstance(trainer.adapter, agl.TraceToMessages)"),
    Block(
        966, given=ALGORITHM, then="assert isinstance(trainer.adapter, agl.TracerTraceToTriplet)"
    ),
    Block(988, given=ALGORITHM, then="assert trainer.strategy.main_process == 'runner'"),
    Block(1046, given=ALGORITHM),
    Block(1088, given=ALGORITHM, refused="SqliteLightningStore"),
    Block(1128, replaced=(("4000", "$port"),)),
    Block(1140, given=ALGORITHM, replaced=(("4000", "$port"),)),
    Block(1158, then="assert args.n_workers == 4"),
    # Traces
    Block(
        1184,
        given=IN_A_TRACE
        + "\nrollout = await store.start_rollout('task')\nattempt = rollout.attempt\n"
        + "async def run_agent_logic(): emit_reward(1.0)",
        then="assert len(await store.query_spans(rollout.rollout_id)) >= 1",
    ),
    Block(
        1296,
        given=STORE + "\nrollout_id = (await store.enqueue_rollout('task')).rollout_id",
        then="assert reward is None",
    ),
    # The first agent
    Block(
        1395,
        given=ROOMS,
        then="assert room_selector({'expected_choice': 'A103'}, prompt_template_baseline()) == 1.0",
    ),
    Block(
        1475,
        given="import os, agentlightning as agl\nos.environ['OPENAI_API_KEY'] = 'x'",
        then="assert isinstance(algo, agl.Algorithm)",
    ),
    Block(
        1491,
        given=ROOMS
        + ALGORITHM
        + """
algo = algorithm
@agl.rollout
def room_selector(task: dict, prompt_template: agl.PromptTemplate) -> float: return 1.0
""",
        replaced=(("dataset_train, dataset_val = ...", "dataset_train = dataset_val = [{}]"),),
    ),
    # The SQL agent
    Block(
        1617,
        given="""
from typing import Any, Dict
import agentlightning as agl
question, ground_truth, db_path = "q", "SELECT 1", "x.sqlite"
class Graph:
    def invoke(self, task, config): return {"query": "SELECT 1"}
def build_langgraph_sql_agent(**options):
    assert options["openai_base_url"] == "http://127.0.0.1:1/v1"
    return Graph()
def evaluate_query(query, truth, path, raise_on_error): return float(query == truth)
""",
        then="""
class Tracer(agl.OtelTracer):
    def get_langchain_handler(self, tags=None): return None
store = agl.InMemoryLightningStore()
runner = agl.LitAgentRunner(Tracer())
llm = agl.LLM(endpoint="http://127.0.0.1:1/v1", model="tiny")
with runner.run_context(agent=LitSQLAgent(3, 100), store=store):
    rollout = await runner.step({"db_id": "x"}, resources={"main_llm": llm})
assert rollout.status == "succeeded"
""",
    ),
    Block(
        1676,
        given="from typing import Any, Dict\nimport agentlightning as agl",
        replaced=(("        ...,\n", ""), (", ...}", "}"), ("            ...\n", "")),
        then="agl.VERL(verl_config)",
    ),
    Block(
        1754,
        given=ALGORITHM
        + """
import os, pandas as pd
active_agent = "write"
verl_config = {"data": {"train_batch_size": 2}}
class LitSQLAgent(agl.LitAgent):
    def rollout(self, task, resources, rollout): return 1.0
os.makedirs("data")
for name in ("train_spider", "test_dev_500"):
    pd.DataFrame({"question": ["q"]}).to_parquet(f"data/{name}.parquet")
""",
        needs=("verl", "pandas"),
    ),
    Block(
        1782,
        given="""
import os
import agentlightning as agl
os.environ["OPENAI_API_BASE"] = os.environ["MODEL_URL"]
""",
        then="assert trainer.n_runners == 1",
    ),
    Block(
        1797,
        given="""
import os, agentlightning as agl
class Frame:
    def to_dict(self, kind): return [{"question": "q"}]
class pd:
    @staticmethod
    def read_parquet(path): return Frame()
class Agent(agl.LitAgent):
    def rollout(self, task, resources, rollout): return 1.0
agent = Agent()
os.environ['OPENAI_API_BASE'] = os.environ['MODEL_URL']
""",
        after=(1782,),
    ),
    # Fine-tuning
    Block(
        1994,
        given=STORE + "\nport, model_path, server_address = $port, 'tiny', '$model'",
        then="assert 'main_llm' in resource_update.resources\nawait llm_proxy.stop()",
    ),
    Block(
        2015,
        given=STORE
        + "\nfrom agentlightning import Rollout\ntrain_dataset = [1, 2]\n"
        + "resources_update = await store.add_resources({})",
        then="assert len(rollouts) == 2",
    ),
    Block(
        2029,
        given=STORE
        + """
import asyncio
from agentlightning import Rollout
rollouts = [await store.start_rollout(1)]
await store.update_attempt(rollouts[0].rollout_id, "latest", status="succeeded")
""",
    ),
    Block(
        2056,
        given=STORE + "\ncompleted_rollouts = [await store.start_rollout(1)]",
        then="assert all_triplets == []",
    ),
    Block(2159, then="assert isinstance(math_agent, agl.LitAgent)", needs=("openai-agents",)),
    Block(
        2207,
        given="""
import os, agentlightning as agl
os.environ.update(OPENAI_BASE_URL=os.environ["MODEL_URL"], OPENAI_API_KEY="dummy")
@agl.rollout
async def math_agent(task: dict, llm: agl.LLM) -> float:
    return task["target"] if llm.model == "gpt-4.1-mini" else 0.0
""",
        replaced=(("asyncio.run(math_agent(", "assert 2.0 == await (math_agent("),),
    ),
    Block(
        2244,
        given="""
import asyncio, multiprocessing, threading
import agentlightning as agl
multiprocessing.set_start_method("fork")
served = agl.InMemoryLightningStore()
server = agl.LightningStoreServer(served, "127.0.0.1", $port)
await server.start()
for number in range(4):
    await served.enqueue_rollout(number)
count = multiprocessing.Value("i")
@agl.rollout
def math_agent(task: int) -> float:
    with count.get_lock(): count.value += 1
    return 1.0
class Ended:
    def is_set(self): return count.value == 4
""",
        replaced=(
            ("4747", "$port"),
            ("runner.iter()", "runner.iter(event=Ended())"),
            ("\nspawn_runners(", "\nimport asyncio\nawait asyncio.to_thread(spawn_runners, "),
        ),
        then="""
done = await served.query_rollouts()
assert [rollout.status for rollout in done] == ["succeeded"] * 4, done
await server.stop()
""",
    ),
    Block(
        2282,
        given="""
from typing import Optional, TypedDict
import agentlightning as agl
from agentlightning import Dataset, LLMProxy, Trainer
class GsmProblem(TypedDict):
    input: str
class Settings:
    def __init__(self, max_iterations, **others):
        self.max_iterations = max_iterations
class math_agent(agl.LitAgent):
    def rollout(self, task, resources, rollout): return 1.0
math_agent = math_agent()
def load_math_dataset(): return [{"input": "1 + 1"}]
""",
        replaced=(("(agl.Algorithm)", "(Settings, agl.Algorithm)"), ("12358", "$port")),
    ),
    # Writing agents
    Block(
        2356,
        given="final_message = 'A103'\ndef room_selection_grader(a, b): return float(a == b)",
        replaced=(("    pass\n", "    expected_choice: str\n"),),
        then="""
template = PromptTemplate(template="x", engine="f-string")
assert room_selector({"expected_choice": "A103"}, template) == 1.0
""",
    ),
    Block(2382, given=ROOMS + "\n@agl.rollout\ndef room_selector(task: dict) -> float: return 1.0"),
    Block(
        2397,
        given="from typing import TypedDict\nfrom agentlightning import rollout\n"
        "def grade_flight_booking(answer, expected): return float(answer == expected['answer'])",
        then="""
import os
import agentlightning as agl
store = agl.InMemoryLightningStore()
runner = agl.LitAgentRunner(agl.OtelTracer())
llm = agl.LLM(endpoint=os.environ["MODEL_URL"], model="tiny")
with runner.run_context(agent=flight_assistant, store=store):
    rollout = await runner.step(
        {"request": "Hello", "expected_booking": {"answer": "Hello"}}, resources={"main_llm": llm}
    )
assert agl.find_final_reward(await store.query_spans(rollout.rollout_id)) == 1.0
""",
        needs=("openai",),
    ),
    Block(
        2465,
        given=ROOMS,
        then="""
store = agl.InMemoryLightningStore()
runner = agl.LitAgentRunner(agl.OtelTracer())
resources = {"prompt_template": agl.PromptTemplate(template="x", engine="f-string")}
with runner.run_context(agent=RoomSelectorAgent(), store=store):
    rollout = await runner.step({"expected_choice": "A103"}, resources=resources)
assert agl.find_final_reward(await store.query_spans(rollout.rollout_id)) == 1.0
""",
    ),
    *(
        Block(line, no_program=NO_NAME)
        for line in (1336, 1586, 1884, 1961, 2047, 2095, 2111, 2124, 2498, 3225, 3237, 3333, 3353)
    ),
    # A report on the integration of another program
    Block(
        226,
        LOGGED,
        given="import sys, types\ncamp = types.ModuleType('training_camp')\n"
        "camp.load_export = lambda path: [{'prompt': 'Say {task}', 'reward': 1.0}]\n"
        "sys.modules['training_camp'] = camp",
    ),
)
