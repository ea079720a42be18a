"""The handler of a tracer that has none of its own."""

import pytest

import agl

pytest.importorskip("langchain_core")


def test_handler_of_any_tracer_can_be_given_to_langchain():
    from langchain_core.runnables import RunnableLambda

    add = RunnableLambda(lambda number: number + 1)
    handler = agl.OtelTracer().get_langchain_handler()
    # With None in its place LangChain raises an AttributeError.
    assert add.invoke(1, config={"callbacks": [handler]}) == 2
