"""An agent that answers questions about a database: it writes SQL, runs it, checks it, rewrites it.

    write_query -> execute_query -> check_query -> the end
                         ^              |
                         +--- rewrite_query

A graph of LangGraph whose four nodes are functions. Three of them call the model; each names itself
in the header ``x-agl-agent``, so that a training run can choose between them: with ``agent_match``
"write", the calls of ``write_query`` and ``rewrite_query`` are learned from, and those of
``check_query`` are not.

    python sql_agent.py     # a few questions, against the model at OPENAI_BASE_URL
"""

import asyncio
import os
import re
from pathlib import Path
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

from sql_execution import QueryError, evaluate_query, read_schema, run_query
from sql_tasks import SqlKey, SqlTask, databases_of, load_tasks

import agl

WRITE_PROMPT = """You write SQL for SQLite.

Database:
{schema}

Question: {question}

Answer with one SELECT statement in a block of ```sql, and select nothing that is not asked for."""

CHECK_PROMPT = """You check SQL for SQLite.

Database:
{schema}

Question: {question}

Query:
{query}

It returned:
{execution}

Does the query answer the question? Look for errors, wrong tables or columns, missing or needless
conditions, wrong joins, wrong order. Name what is wrong. End with the line
THE QUERY IS CORRECT or the line THE QUERY IS INCORRECT."""

REWRITE_PROMPT = """You mend SQL for SQLite.

Database:
{schema}

Question: {question}

Query:
{query}

It returned:
{execution}

What a reviewer says:
{feedback}

Answer with one better SELECT statement in a block of ```sql, and select nothing that is not asked
for."""


REQUEST_TIMEOUT_SECONDS = 600.0
"""Also to connect: the default of 5 seconds is short for a machine that trains."""


class State(TypedDict):
    """What goes through the graph."""

    question: str
    schema: str
    query: str
    execution: str
    feedback: str
    is_correct: bool
    num_turns: int
    """How many queries were written so far."""


def build_sql_graph(llm: agl.LLM, database: Path, *, max_turns: int, truncate_length: int) -> Any:
    """The compiled graph of one task; ``ainvoke({"question": ...})`` returns the last state.

    Args:
        llm: The model's address, name and sampling parameters.
        database: The database that queries run in.
        max_turns: Queries written at most, the first one included.
        truncate_length: Characters of schema, result and feedback that a prompt holds at most.
    """
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, StateGraph

    async def ask(node: str, prompt: str, state: State) -> str:
        texts = {key: _cut(str(value), truncate_length) for key, value in state.items()}
        model = ChatOpenAI(
            model=llm.model,
            base_url=llm.endpoint,
            api_key=llm.api_key or "none",  # type: ignore[arg-type]
            default_headers={"x-agl-agent": node},
            max_retries=0,  # the gateway retries, and records each call once
            **_http_clients(),
            **_sampling(llm.sampling_parameters),
        )
        answer = await model.ainvoke([("user", prompt.format(**texts))])
        return str(answer.content)

    async def write_query(state: State) -> dict[str, Any]:
        return {"query": find_query(await ask("write_query", WRITE_PROMPT, state)), "num_turns": 1}

    async def execute_query(state: State) -> dict[str, Any]:
        try:
            # In a thread: other rollouts of this process go on meanwhile.
            result = await asyncio.to_thread(run_query, database, state["query"])
        except QueryError as error:
            return {"execution": f"Error: {error}"}
        return {"execution": result.as_text(truncate_length)}

    async def check_query(state: State) -> dict[str, Any]:
        feedback = await ask("check_query", CHECK_PROMPT, state)
        return {"feedback": feedback, "is_correct": says_correct(feedback)}

    async def rewrite_query(state: State) -> dict[str, Any]:
        query = find_query(await ask("rewrite_query", REWRITE_PROMPT, state))
        return {"query": query, "num_turns": state["num_turns"] + 1}

    def after_check(state: State) -> str:
        is_over = state["is_correct"] or state["num_turns"] >= max_turns
        return END if is_over else "rewrite_query"

    graph = StateGraph(State)
    for node in (write_query, execute_query, check_query, rewrite_query):
        graph.add_node(node)
    graph.add_edge(START, "write_query")
    graph.add_edge("write_query", "execute_query")
    graph.add_edge("execute_query", "check_query")
    graph.add_conditional_edges("check_query", after_check, ["rewrite_query", END])
    graph.add_edge("rewrite_query", "execute_query")
    return graph.compile(name="sql_agent")


def find_query(answer: str) -> str:
    """The last block of SQL in an answer; the whole answer where there is no block."""
    blocks = re.findall(r"```(?:sql)?\s*(.*?)```", answer, flags=re.DOTALL | re.IGNORECASE)
    return (blocks[-1] if blocks else answer).strip()


def says_correct(feedback: str) -> bool:
    """What the last verdict in a check is; without any, the query is taken as wrong."""
    verdicts = re.findall(r"THE QUERY IS (IN)?CORRECT", feedback.upper())
    return bool(verdicts) and verdicts[-1] == ""


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length]}\n... (cut off)"


_CLIENTS: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Any]]" = WeakKeyDictionary()


def _http_clients() -> dict[str, Any]:
    """One pair of clients per event loop: making one takes longer than a small model's answer."""
    import httpx

    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        _CLIENTS[loop] = {
            "http_async_client": httpx.AsyncClient(timeout=REQUEST_TIMEOUT_SECONDS, limits=limits),
            "http_client": httpx.Client(timeout=REQUEST_TIMEOUT_SECONDS),
        }
    return _CLIENTS[loop]


def _sampling(parameters: dict[str, Any]) -> dict[str, Any]:
    """As ``ChatOpenAI`` takes them: what it does not know by name goes into the body as it is."""
    known = {"temperature", "top_p", "max_tokens", "seed", "n", "stop"}
    named = {name: value for name, value in parameters.items() if name in known}
    others = {name: value for name, value in parameters.items() if name not in known}
    return {**named, **({"extra_body": others} if others else {})}


class LitSQLAgent(agl.LitAgent[SqlTask]):
    """Does one task: build the graph, and run it. Its last query is what is graded.

    Args:
        max_turns: Queries written at most, the first one included.
        truncate_length: Characters of schema, result and feedback that a prompt holds at most.
    """

    def __init__(self, max_turns: int = 3, truncate_length: int = 4096) -> None:
        super().__init__()
        self.max_turns = max_turns
        self.truncate_length = truncate_length

    async def rollout_async(
        self, task: SqlTask, resources: agl.NamedResources, rollout: agl.Rollout
    ) -> str:
        """The query with which the agent ends."""
        llm = resources["main_llm"]
        assert isinstance(llm, agl.LLM)
        assert isinstance(rollout, agl.AttemptedRollout)
        if isinstance(llm, agl.ProxyLLM):
            llm = llm.with_attempted_rollout(rollout)
        return await self.answer(task, llm)

    def grade(self, task: SqlTask, private: SqlKey, result: str) -> float:
        """1 for the right rows in every database of the task, else 0.

        Called in a process of its own. The agent gets the reference nowhere.
        """
        return evaluate_query(str(result), private["query"], databases_of(task))

    async def answer(self, task: SqlTask, llm: agl.LLM) -> str:
        """The query with which the agent ends."""
        database = databases_of(task)[0]
        graph = build_sql_graph(
            llm, database, max_turns=self.max_turns, truncate_length=self.truncate_length
        )
        # AgentOps' tracer has a handler for LangChain; the other tracers need none.
        tracer = agl.get_active_tracer()
        handler = tracer.get_langchain_handler() if tracer else None
        state = await graph.ainvoke(
            {"question": task["question"], "schema": read_schema(database)},
            {"callbacks": [handler] if handler else [], "recursion_limit": 100},
        )
        return state["query"]


async def debug_sql_agent() -> None:
    """Answer three questions without trainer, runner or store."""
    llm = agl.LLM(
        endpoint=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ.get("OPENAI_API_KEY"),
        model=os.environ.get("AGENT_MODEL", "gpt-4.1-nano"),
    )
    agent = LitSQLAgent()
    for task in load_tasks()[1][:3]:
        query = await agent.answer(task, llm)
        reward = agent.grade(task, task["private"], query)
        print(f"{reward:g}  {task['question']}\n   {query}")


if __name__ == "__main__":
    asyncio.run(debug_sql_agent())
