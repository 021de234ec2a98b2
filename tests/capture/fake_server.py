"""A server that answers like one of OpenAI's API: `python fake_server.py PORT`.

Its answers depend on nothing: the text is the same, whole or as a stream.  It stands in for the model behind a gateway.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER = "Because air scatters blue light."
USAGE = {"prompt_tokens": 8, "completion_tokens": 6, "total_tokens": 14}


COUNT = itertools.count(1)


def answer(model: Any, is_chunk: bool = False, **choice: Any) -> dict[str, Any]:
    kind = "chat.completion.chunk" if is_chunk else "chat.completion"
    return {"id": f"chatcmpl-{next(COUNT)}", "object": kind, "created": int(time.time()), "model": model, "choices": [
        {"index": 0, "finish_reason": None, **choice}]}  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """Chat and text completions."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, b"{}")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = request.get("model")
        if not self.path.endswith("/completions"):
            self._send(404, b'{"error": "no such path"}')
        elif not request.get("stream"):
            body = {"text": ANSWER} if "prompt" in request else {"message": {"role": "assistant", "content": ANSWER}}
            self._send(200, json.dumps({**answer(model, finish_reason="stop", **body), "usage": USAGE}).encode())
        else:
            pieces = [answer(model, True, delta={"content": word + " "}) for word in ANSWER.split()]
            pieces += [answer(model, True, delta={}, finish_reason="stop")]
            pieces += [{**answer(model, True), "choices": [], "usage": USAGE}]
            lines = [f"data: {json.dumps(piece)}\n\n".encode() for piece in pieces]
            self._send(200, b"".join([*lines, b"data: [DONE]\n\n"]), "text/event-stream")

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
