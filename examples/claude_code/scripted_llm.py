"""A model server for runs without a model: it knows how the samples are mended.

It reads the file, edits it, looks whether it still can be imported, and says so: four turns of
Claude Code. The third sample it mends wrongly.
"""

import json
import re
from typing import Any

EDITS = {
    "add(2, 3)": ("calculator.py", "a - b", "a + b"),
    "count_words": ("words/counting.py", "text.split(' ')", "text.split()"),
    "is_leap": ("dates.py", "year % 4 == 0", "year % 4 == 0 and year % 100 != 0"),
}


def scripted_reply(request: dict[str, Any]) -> Any:
    """What ``agl_testing.echo_llm.EchoLLM`` answers to Claude Code."""
    messages = request["messages"]
    text = json.dumps(messages)
    known = [edit for word, edit in EDITS.items() if word in text]
    if not request.get("tools") or not known:
        return "nothing to do"
    file, old, new = known[0]
    folder = re.search(r"Primary working directory: ([^\\\s\"]+)", text)
    path = f"{folder[1]}/{file}" if folder else file
    said = sum(message["role"] == "assistant" for message in messages)
    turns = [
        ("Read", {"file_path": path}),
        ("Edit", {"file_path": path, "old_string": old, "new_string": new}),
        ("Bash", {"command": f"python -m py_compile {path}", "description": "Compile the file"}),
    ]
    if said >= len(turns):
        return "The bug is mended."
    name, arguments = turns[said]
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{said}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
