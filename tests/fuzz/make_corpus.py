"""Writes the seeds from the samples of the tests: `python tests/fuzz/make_corpus.py PAYLOADS`.

PAYLOADS is what tests/tap/formats/litellm_payloads.py wrote; without it the seeds that are no messages are written.
The first byte of a seed chooses headers, engine or file in target.py.  The seeds are committed, so that a run needs no
litellm and starts from the same place everywhere.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shadowspec.demo import DRAFT
from shadowspec.servers.engines import ENGINES
from shadowspec.tap.formats import MessageFormat
from tests.fuzz.target import FILES
from tests.tap.formats import samples
from tests.tap.formats.log_samples import LOGS, OWN, batch_output, format_of, sharegpt
from tests.tap.mirror import chat, messages, responses

CORPUS = Path(__file__).with_name("corpus")
RECORDED = Path(__file__).parents[1] / "capture" / "recorded"
PLAIN, STRUCTURED, BATCH, BINARY_REQUEST, BINARY_RESPONSE = (bytes([number]) for number in (0, 2, 3, 4, 5))
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
TOOL = {"name": "weather", "input_schema": SCHEMA}
RESPONSES_TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "Why is the sky blue?"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Light scatters."}]},
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "rain"},
]
TURNS = [
    {"role": "user", "content": "Why is the sky blue?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "weather", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "rain"}]},
]
EVENTS = (
    '\ufeffid: 1\rretry: 5\r\ndata: {"choices": [{"index": 0,\ndata: "delta": {"content": "\u2028"}}]}\r\rdata: [DONE]'
)
PARTS = [
    {"role": "developer", "content": ["Be brief.", {"type": "text", "text": None}, {"type": "refusal", "refusal": ""}]},
    {"role": "assistant", "reasoning": "why", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}]},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "rain"}]},
]  # fmt: skip
LARGEST = 6_000  # bytes: a large seed makes every mutation slow
SHORTENED = ("model_map_information", "response_cost_failure_debug_info", "status_fields", "error_information")


def seeds(payloads: dict[str, dict[str, Any]]) -> dict[str, dict[str, bytes]]:
    """Content by format and name."""
    event = {"specversion": "1.0", **samples.attributes("request"), "data": samples.REQUEST}
    answer = {"specversion": "1.0", **samples.attributes("response"), "data": samples.ANSWER}
    stream = 'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [1]}]}\n\ndata: [DONE]\n\n'
    short = {
        name: {key: value for key, value in payload.items() if key not in SHORTENED}
        for name, payload in payloads.items()
        if name != "long" and not name.startswith("cut")
    }
    old = {"payload": {"request": "{}"}, "ai-proxy": {"meta": {}, "payload": {"response": stream}}}
    return {
        "openai": {
            "chat": PLAIN + json.dumps(chat()).encode(),
            "text": PLAIN
            + json.dumps({"request": {"model": "m", "prompt": "x", "top_k": 3}, "timestamp": 1.7e9}).encode(),
            "pair": PLAIN + json.dumps([chat(), chat(request_n=2)]).encode(),
            "responses": PLAIN + json.dumps(responses(tools=[RESPONSES_TOOL], tool_choice="required")).encode(),
            "items": PLAIN + json.dumps(responses(input=ITEMS)).encode(),
            "messages": PLAIN + json.dumps(messages(messages=TURNS, system="Be brief.", tools=[TOOL])).encode(),
            "schema": PLAIN + json.dumps(chat(request_response_format=FORMAT)).encode(),
            "wire": PLAIN + _first_line("nginx"),
            "wire_stream": PLAIN
            + b'{"timestamp":1.7e9,"status":200,"request_body":'
            + json.dumps(json.dumps(chat()["request"])).encode()
            + b',"response_body":'
            + json.dumps(stream).encode()
            + b"}",
            "wire_events": PLAIN
            + json.dumps(
                {"timestamp": 1.7e9, "request_body": json.dumps(chat()["request"]), "response_body": EVENTS}
            ).encode(),
            "parts": PLAIN + json.dumps(chat(request_messages=PARTS)).encode(),
            "headers": b"\x01" + json.dumps(chat(session_id=None, metadata={"tier": "pro"})).encode(),
        },
        "litellm": {
            **{name: PLAIN + json.dumps(payload).encode() for name, payload in short.items()},
            "lines": PLAIN + b"\n".join(json.dumps(short[name]).encode() for name in ("plain", "failed")),
        },
        "cloudevents": {
            "structured": STRUCTURED + json.dumps(event).encode(),
            "batch": BATCH + json.dumps([event, answer]).encode(),
            "base64": STRUCTURED + json.dumps({**event, "data": None, "data_base64": "e30="}).encode(),
            "whole": PLAIN + json.dumps({**event, "type": "other", "data": {"request": samples.REQUEST}}).encode(),
            "request": BINARY_REQUEST + json.dumps(samples.REQUEST).encode(),
            "response": BINARY_RESPONSE + stream.encode(),
        },
        "kong": {
            "entry": PLAIN + json.dumps(samples.kong_entry()).encode(),
            "old": PLAIN + json.dumps(samples.kong_entry(ai=old)).encode(),
            "batch": PLAIN + json.dumps([samples.kong_entry(ai=None), samples.kong_entry()]).encode(),
        },
        "otlp": {
            "event": PLAIN + _shortened("otlp-events", "resourceLogs", "scopeLogs", "logRecords", 0, 1),
            "tool": PLAIN + _shortened("otlp-events", "resourceLogs", "scopeLogs", "logRecords", 2, 3),
            "spans": PLAIN + _shortened("otlp-spans", "resourceSpans", "scopeSpans", "spans", 0, 2),
            "tool_span": PLAIN + _shortened("otlp-spans", "resourceSpans", "scopeSpans", "spans", 2, 3),
        },
    }


def log_seeds() -> dict[str, dict[str, bytes]]:
    """Two calls of each log, by format."""
    made: dict[str, dict[str, bytes]] = {}
    for log, documents in LOGS.items():
        if log != MessageFormat.LITELLM:
            prefix = "call" if log == format_of(log) else f"{log.replace(' ', '_')}_call"
            chosen = {0: _first_calls(documents[0])} if len(documents) == 1 else {n: documents[n] for n in (0, 7)}
            calls = {f"{prefix}{number}": PLAIN + json.dumps(call).encode() for number, call in chosen.items()}
            made.setdefault(format_of(log), {}).update(calls)
    made["row"]["sharegpt"] = PLAIN + json.dumps(sharegpt(0)).encode()
    made["batch"]["output"] = PLAIN + json.dumps(batch_output(0)).encode()
    return made


def _first_calls(document: dict[str, Any]) -> dict[str, Any]:
    """A document of many calls with two of them."""
    if "data" in document:
        return {"data": document["data"][:1]}
    requests = document["benchmarks"][0]["requests"] | {
        "errored": document["benchmarks"][0]["requests"]["successful"][1:2]
    }
    return {"benchmarks": [{"requests": requests | {"successful": requests["successful"][:1]}}]}


def other_seeds() -> dict[str, dict[str, bytes]]:
    """Content by target and name, of what is no message."""
    pages = {
        path.stem: _page_lines(path) for path in sorted((Path(__file__).parents[1] / "data" / "live").glob("*.txt"))
    }
    table = pyarrow.table({"request": [{"model": "model-a", "prompt": "x"}], "timestamp": [1.7e9], "top_k": [5.0]})
    text = pyarrow.table({"request_body": ['{"model": "m"}'], "response_body": [None], "timestamp_ms": [1]})
    stream = 'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\ndata: [DONE]\n\n'
    return {
        "page": {name: bytes([engine]) + page for name, page in pages.items() for engine in [_engine_of(name)]},
        "stream": {"plain": PLAIN + stream.encode(), "odd": PLAIN + EVENTS.encode()},
        "parquet": {"structs": PLAIN + _parquet(table), "texts": PLAIN + _parquet(text)},
        "model": {
            name: bytes([place]) + (Path(DRAFT) / name).read_bytes()
            for place, name in enumerate(FILES)
            if (Path(DRAFT) / name).exists() and (Path(DRAFT) / name).stat().st_size < LARGEST
        },
    }


def _page_lines(path: Path) -> bytes:
    """The lines of a metrics page that are about requests, tokens and speculation."""
    words = ("spec", "draft", "accept", "running", "process", "tokens_total", "requests")
    lines = [
        line for line in path.read_text().splitlines() if any(word in line for word in words) and "bucket" not in line
    ]
    return "\n".join(lines).encode()[: LARGEST - 100] + b"\n"


def _engine_of(name: str) -> int:
    return next(place for place, engine in enumerate(ENGINES) if name.startswith(engine.replace(".", "")))


def _parquet(table: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())


def _first_line(name: str) -> bytes:
    return (RECORDED / f"{name}.jsonl").read_bytes().splitlines()[0]


def _shortened(name: str, resources: str, scopes: str, records: str, first: int, end: int) -> bytes:
    """The recorded document with some of its records."""
    document = json.loads(_first_line(name))
    scope = document[resources][0][scopes][0]
    scope[records] = scope[records][first:end]
    return json.dumps(document).encode()


def main() -> None:
    made: dict[str, dict[str, bytes]] = {}
    if len(sys.argv) > 1:
        made = seeds(json.loads(Path(sys.argv[1]).read_text()))
        made["auto"] = {f"{format}-{name}": data for format, named in made.items() for name, data in named.items()}
    for format, named in (other_seeds() | log_seeds()).items():
        made.setdefault(format, {}).update(named)
    made.setdefault("litellm", {})["row"] = PLAIN + json.dumps(LOGS[MessageFormat.LITELLM][1]).encode()
    made["map"] = {"own": PLAIN + json.dumps(OWN).encode()}
    for format, named in made.items():
        folder = CORPUS / format
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in named.items():
            assert len(data) <= LARGEST, f"{format}/{name} is too large: {len(data)}"
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
