"""A model call in OpenInference's words and in GenAI's."""

import json

from agl.utils.secrets import learn
from agl_records.training_data import ModelCall
from agl_trackers.conventions import call_attributes, clean

TOOL = {"id": "c1", "type": "function", "function": {"name": "book", "arguments": '{"room": 1}'}}


def call(**fields: object) -> ModelCall:
    ids = {"call_id": "s", "rollout_id": "r", "attempt_id": "a", "sequence_id": 1}
    return ModelCall.model_validate({**ids, "model": "tiny", **fields})


def test_tool_calls_and_their_answers_are_said_in_both():
    messages = [
        {"role": "user", "content": "Book one."},
        {"role": "assistant", "content": None, "tool_calls": [TOOL]},
        {"role": "tool", "tool_call_id": "c1", "content": "booked"},
    ]
    found = call_attributes(call(messages=messages, response={"content": "Done."}), [])
    assert found["llm.input_messages.1.message.tool_calls.0.tool_call.function.name"] == "book"
    assert found["llm.input_messages.2.message.tool_call_id"] == "c1"
    asked = json.loads(str(found["gen_ai.input.messages"]))
    assert asked[1]["parts"] == [
        {"type": "tool_call", "id": "c1", "name": "book", "arguments": {"room": 1}}
    ]
    assert asked[2]["parts"] == [{"type": "tool_call_response", "id": "c1", "response": "booked"}]
    assert found["output.value"] == "Done."


def test_pictures_are_said_in_both():
    picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}
    content = [{"type": "text", "text": "What is it?"}, picture]
    found = call_attributes(call(messages=[{"role": "user", "content": content}]), [])
    at = "llm.input_messages.0.message.contents"
    assert found[f"{at}.0.message_content.text"] == "What is it?"
    assert found[f"{at}.1.message_content.image.image.url"] == "http://127.0.0.1/a.png"
    [asked] = json.loads(str(found["gen_ai.input.messages"]))
    assert [part["type"] for part in asked["parts"]] == ["text", "uri"]


def test_tokens_are_counted_where_nobody_said_how_many():
    found = call_attributes(call(prompt_token_ids=[1, 2, 3], response_token_ids=[4]), [])
    assert found["llm.token_count.total"] == 4
    assert found["gen_ai.usage.input_tokens"] == 3
    assert "prompt_token_ids" not in found


def test_secrets_are_left_out():
    secret = "a-key-of-ours-0123456789"
    learn(secret)
    tool = {"type": "function", "function": {"name": "ask", "description": f"With {secret}"}}
    asked = [{"role": "user", "content": f"Use {secret}"}]
    found = call_attributes(call(messages=asked, tools=[tool]), [])
    assert "With " in json.dumps(found)
    assert secret not in json.dumps(found)
    listed = clean({"keys": [secret], "pair": (f"Use {secret}", 1)})
    assert listed["pair"][1] == 1
    assert secret not in str(listed)
