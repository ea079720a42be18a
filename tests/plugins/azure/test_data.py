"""What is sent for training: pure functions."""

import pytest

from agl_azure.data import bill, count_tokens, example_of_chat


class Chat:
    def __init__(self, messages, answers, tools=()):
        self.messages, self.answers, self.tools = messages, answers, list(tools)


USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_only_a_rows_own_answers_are_trained():
    messages = [USER, {"role": "assistant", "content": "example"}, USER]
    chat = Chat([*messages, {"role": "assistant", "content": "own"}], [3])
    example = example_of_chat(chat)
    assert [message.get("weight") for message in example["messages"]] == [None, 0, None, None]
    assert "tools" not in example


def test_what_follows_the_last_trained_answer_is_not_paid_for():
    answers = [{"role": "assistant", "content": word} for word in ("good", "bad")]
    example = example_of_chat(Chat([USER, answers[0], USER, answers[1]], [1]))
    assert example == {"messages": [USER, answers[0]]}


def test_a_line_has_only_what_azure_takes():
    answer = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    answer |= {"reasoning_content": "hm", "tool_calls": [CALL]}
    example = example_of_chat(Chat([USER, answer], [1], [{"type": "function"}]))
    assert example == {
        "messages": [USER, {"role": "assistant", "tool_calls": [CALL]}],
        "tools": [{"type": "function"}],
    }


def test_tokens_are_estimated_and_costs_follow():
    # 40 bytes of text are 10 tokens, and the message 4 more.
    example = {"messages": [{"role": "user", "content": "x" * 40}]}
    assert count_tokens(example) == 14
    stated = bill([example] * 100, 3, 25.0)
    assert stated.trained_tokens == 14 * 100 * 3
    assert stated.cost == pytest.approx(4200 * 25 / 1e6)
    assert "about 4,200 trained tokens" in str(stated)
    assert "not known" in str(bill([example], 1, None))
