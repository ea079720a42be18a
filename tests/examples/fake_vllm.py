"""What stands on the path as ``vllm`` in tests: ``vllm serve MODEL --port PORT``.

It says that it is ready at the second look, and answers with the last word of the prompt, with
token ids. ``VLLM_FAKE`` makes it ``die`` at once, or ``hang`` and never be ready.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    looks = 0

    def do_GET(self) -> None:
        Handler.looks += 1
        ready = Handler.looks > 1 and os.environ.get("VLLM_FAKE") != "hang"
        self.answer({}, 200 if ready else 503)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": body["messages"][-1]["content"].split()[-1]}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "token_ids": [7, 8]}
        answer = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
        self.answer({**answer, "model": sys.argv[2], "choices": [choice], "prompt_token_ids": [1]})

    def answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    assert sys.argv[1] == "serve"
    if os.environ.get("VLLM_FAKE") == "die":
        sys.exit(3)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
