"""A server with an OpenAI API on a real socket, which answers as vLLM does, or as badly as it is told to.

What it emits is a function of the prompt alone, so that two of them agree; one that speculates accepts as many tokens
at each step as the step's place says.
"""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

STEP_S = 0.001
TOKENIZING = ("/tokenize", "/apply-template")
Headers = dict[str, str]
Behaviour = Callable[["FakeServer", dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


@dataclass
class FakeServer:
    """`script` holds what becomes of the next completions; when it is empty they are answered well."""

    num_speculative_tokens: int = 0
    model: str = "m"
    adapters: tuple[str, ...] = ()  # names of adapters that it serves beside the model
    # How a chat's events are changed, as by a parser of tool calls, or by one that loses a delta.
    parsed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = list
    rendered: Callable[[dict[str, Any]], list[int]] = lambda body: rendered(body)
    version: str = "0.32.0"
    owner: str = "vllm"
    max_model_len: int = 1024
    level: str = "detailed"  # of per-request metrics: "none", "summary", "detailed"
    has_metrics: bool = True
    tells_queue: bool = False
    queue_ms: float = 0.25
    tells_cached: bool = False
    drafting: dict[str, Any] | None = None  # what it says of its drafting in dev mode; None: it has no dev mode
    started: dict[str, Any] = field(default_factory=dict)  # what it says of its flags, in dev mode where it has one
    process_started: float | None = None  # seconds since 1970, on its page of metrics
    num_info: int = 0  # how often it was asked for its flags
    kv_tokens: int | None = 48_768  # that its cache holds; None: it does not say
    cache_labels: dict[str, str] = field(default_factory=dict)  # of cache_config_info, beside or in place of the usual
    page_tokens: int = 0  # of its prefix cache, which holds whole pages by salt; 0: it has none
    loses_hits: bool = False  # it finds nothing that it has answered before
    prefill_s: float = 0.0  # for each token of a prompt that it does not find
    pages: dict[tuple[str, tuple[int, ...]], None] = field(default_factory=dict)  # the one unused for longest first
    found: list[tuple[str, int]] = field(default_factory=list)  # of each prompt: its salt, and the tokens found
    knows_salts: bool = True  # it keeps prompts of different salts apart
    evicts: bool = False  # its cache holds `kv_tokens` at most
    returns_token_ids: bool = True
    tells_logprobs: bool = True
    top_logprobs: tuple[float, float] = (-0.25, -0.75)  # of the two likeliest tokens at an answer's first place
    max_logprobs: int = 20  # of the likeliest tokens at a prompt's places; 0: it tells none
    reported: Callable[[list[Any]], Any] = list  # what is done to what it tells of them
    scored: list[dict[str, Any]] = field(default_factory=list)  # bodies of requests for prompt_logprobs
    has_template: bool = True  # without one it refuses chats
    tells_tokens: bool = True  # which it makes of a prompt
    refuses_chats: bool = False  # its template raises
    num_tokenized: int = 0
    key: str | None = None  # the bearer token that is wanted
    enforces: bool = True  # what requests restrict its answers to; the fields are those that its version knows
    spoils: int = 0  # so many of the next restricted answers lack their last character, as of a server that masks badly
    lost_token: int | None = None  # the output position at which this server's output is another one
    step_s: float = STEP_S
    cut_looks: int = 0  # so many of the next looks at its pages end with the connection
    is_away: bool = False  # it cuts every connection
    redirect: str | None = None  # where everything points
    script: deque[Behaviour] = field(default_factory=deque)
    scoring_script: deque[Behaviour] = field(default_factory=deque)
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of completions, in the order in which they came
    most_in_flight: int = 0
    num_connections: int = 0
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("drafts", "draft", "accepted", "done"), 0))
    per_pos: list[int] = field(default_factory=list)
    num_generated: int = 0
    _in_flight: int = 0
    _loop: asyncio.AbstractEventLoop | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self._loop = asyncio.get_running_loop()
        if self.is_away:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) is not None:
                first, *lines = head.decode().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                content = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ")
                if self.redirect is not None:
                    location = f"location: {self.redirect}?secret=1\r\n"
                    await respond(writer, 307, "", location)
                elif self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
                    await respond(writer, 401, "{}")
                elif method == "POST" and path in TOKENIZING:
                    await self._tokenize(path, json.loads(content), writer)
                elif method == "POST":
                    await self._complete(self._read(path, json.loads(content)), writer)
                else:
                    await self._look(path, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the server is stopped
        finally:
            self._writers.discard(writer)
            writer.close()

    def leave(self) -> None:
        """Be away from now on, in the middle of whatever it does; may be called from any thread."""
        self.is_away = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.kill)

    def kill(self) -> None:
        """Cut every connection, in the middle of whatever it carries."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _look(self, path: str, writer: asyncio.StreamWriter) -> None:
        if self.cut_looks:
            self.cut_looks -= 1
            writer.transport.abort()
            raise ConnectionError
        if path == "/v1/models":
            entry = {"id": self.model, "owned_by": self.owner, "root": "/models/t", "max_model_len": self.max_model_len}
            data = [entry, *(entry | {"id": name} for name in self.adapters)]
            await respond(writer, 200, json.dumps({"object": "list", "data": data}))
        elif path == "/health":
            await respond(writer, 200, "")
        elif path == "/version":
            await respond(writer, 200, json.dumps({"version": self.version}))
        elif path == "/server_info?config_format=json" and self.drafting is not None:
            self.num_info += 1
            tables = {"speculative_config": self.drafting or None, **self.started}
            await respond(writer, 200, json.dumps({"vllm_config": tables, "vllm_env": tables.pop("env", {})}))
        elif path == "/metrics" and self.has_metrics:
            await respond(writer, 200, self._metrics())
        else:
            await respond(writer, 404, "{}")

    def _metrics(self) -> str:
        text = f'engine="0",model_name="{self.model}"'
        lines = [] if self.process_started is None else [f"process_start_time_seconds {self.process_started}"]
        lines.append("# TYPE vllm:request_success_total counter")
        lines.append(f'vllm:request_success_total{{{text},finished_reason="stop"}} {self.counters["done"]}.0')
        lines += [
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{{{text}}} {self.num_generated}",
        ]
        if self.kv_tokens is not None:
            lines += ["# TYPE vllm:cache_config_info gauge", self._cache_config()]
        if self.num_speculative_tokens:
            for name, key in (
                ("num_drafts", "drafts"),
                ("num_draft_tokens", "draft"),
                ("num_accepted_tokens", "accepted"),
            ):
                lines += [
                    f"# TYPE vllm:spec_decode_{name}_total counter",
                    f"vllm:spec_decode_{name}_total{{{text}}} {self.counters[key]}.0",
                ]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"# TYPE {name} counter")
            for position in range(self.num_speculative_tokens):
                number = self.per_pos[position] if self.per_pos else 0
                lines.append(f'{name}{{{text},position="{position}"}} {number}.0')
        return "\n".join(lines) + "\n"

    def _cache_config(self) -> str:
        """As vLLM 0.32 writes it (tests/data/live)."""
        assert self.kv_tokens is not None
        labels = {
            "block_size": "16",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "kv_cache_max_concurrency": str(self.kv_tokens / self.max_model_len),
            "kv_cache_memory_bytes": "None",
            "kv_cache_size_tokens": str(self.kv_tokens),
            "num_gpu_blocks": str(self.kv_tokens // 16),
            "num_gpu_blocks_override": "None",
        }
        shown = ",".join(f'{name}="{value}"' for name, value in {**labels, **self.cache_labels}.items())
        return f"vllm:cache_config_info{{{shown}}} 1.0"

    async def _tokenize(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """As vLLM: the ids of a text, or of a chat as the template renders it."""
        self.num_tokenized += 1
        if not self.tells_tokens:
            await respond(writer, 404, "{}")
        elif "messages" in body and self.refuses_chats:
            await respond(writer, 400, '{"error": {"message": "hush"}}')
        else:
            ids = self.rendered(body) if "messages" in body else tokens_of(body["prompt"])
            await respond(writer, 200, json.dumps({"count": len(ids), "max_model_len": 1024, "tokens": ids}))

    def _read(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A body of either API; a chat's prompt is what its template makes of it, under the name of the other's."""
        if path != "/v1/chat/completions":
            return body
        return body | {"prompt": self.rendered(body), "max_tokens": body["max_completion_tokens"], "is_chat": True}

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if "prompt_logprobs" in body:
            behave = self.scoring_script.popleft() if self.scoring_script else FakeServer._score
            await behave(self, body, writer)
            return
        if body.get("is_chat") and [message["content"] for message in body["messages"]] == ["Hello"]:  # a look at it
            await (well(self, body, writer) if self.has_template else respond(writer, 400, "{}"))
            return
        self.bodies.append(body)
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            behave = self.script.popleft() if self.script else well
            await behave(self, body, writer)
        finally:
            self._in_flight -= 1

    async def _score(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """As vLLM: of the first place nothing, of the others the likeliest tokens and the prompt's own."""
        self.scored.append(body)
        ids, number = body["prompt"], body["prompt_logprobs"]
        if number > self.max_logprobs or len(ids) + body["max_tokens"] > self.max_model_len:
            await respond(writer, 400, '{"error": {"message": "the prompt was: hush"}}')
            return
        reported: list[Any] = [None]
        for place in range(1, len(ids)):
            every = place_logprobs(ids[:place])
            ranked = sorted(range(len(every)), key=lambda each: -every[each])
            shown = {ids[place]: ranked.index(ids[place]) + 1} | {each: i + 1 for i, each in enumerate(ranked[:number])}
            reported.append({str(each): {"logprob": every[each], "rank": rank, "decoded_token": "hush"}
                         for each, rank in shown.items()})  # fmt: skip
        choice = {"index": 0, "text": "hush", "prompt_logprobs": self.reported(reported), "finish_reason": "length"}
        await respond(writer, 200, json.dumps({"model": self.model, "choices": [choice]}))

    def restriction(self, body: dict[str, Any]) -> dict[str, Any]:
        """What a body restricts the answer to, by form, as far as this version reads it."""
        if self.owner == "vllm" and tuple(map(int, self.version.split(".")[:2])) < (0, 11):
            names = ("json", "regex", "choice", "grammar")
            found = {name: body[f"guided_{name}"] for name in names if f"guided_{name}" in body}
            kind = body.get("response_format", {}).get("type")
            return found | ({kind: body["response_format"]} if kind is not None else {})
        options: dict[str, Any] = body.get("structured_outputs", {})
        return options

    def restricted_text(self, body: dict[str, Any]) -> str | None:
        restriction = self.restriction(body) if self.enforces else {}
        if not restriction:
            return None
        ((form, value),) = restriction.items()
        text = restricted(form, value, sum(body["prompt"]))
        if self.spoils:
            self.spoils -= 1
            return text[:-1]
        return text

    def output(self, body: dict[str, Any]) -> list[int]:
        if (text := self.restricted_text(body)) is not None:
            tokens = [CHARACTERS + ord(each) for each in text][: body["max_tokens"]]
        else:
            tokens = [(sum(body["prompt"]) + 7 * place) % 50 + 3 for place in range(body["max_tokens"])]
        if self.lost_token is not None and self.lost_token < len(tokens):
            tokens[self.lost_token] += 100
        return tokens

    def cached_tokens(self, body: dict[str, Any]) -> int:
        """Of the prompt, in pages that were answered under the same salt; as vLLM, never all of it."""
        prompt, size, salt = tuple(body["prompt"]), self.page_tokens, body["cache_salt"]
        ends = range(size, len(prompt) + 1, size) if size else ()
        places = [(salt if self.knows_salts else "", prompt[:end]) for end in ends]
        held = list(takewhile(self.pages.__contains__, places))
        found = min(len(held), (len(prompt) - 1) // size) * size if size else 0
        if not self.loses_hits:
            for place in places:
                self.pages.pop(place, None)
                self.pages[place] = None
            while self.evicts and len(self.pages) * size > (self.kv_tokens or 0):
                del self.pages[next(iter(self.pages))]
        self.found.append((salt, found))
        return found

    def num_accepted(self, body: dict[str, Any], before: list[int], step: int) -> int:
        """Of the draft that this step verifies after these tokens of the output."""
        return (step + len(body["prompt"])) % (self.num_speculative_tokens + 1)

    def chunks(self, body: dict[str, Any]) -> tuple[list[list[int]], dict[str, Any] | None]:
        """The tokens of each step, and what the answer says of its drafts."""
        tokens, width = self.output(body), self.num_speculative_tokens
        parts, accepted, place = [tokens[:1]], [], 1
        while place < len(tokens):
            number = self.num_accepted(body, tokens[:place], len(accepted))
            if width:
                accepted.append(number)
            parts.append(tokens[place : place + number + 1])
            place += number + 1
        histogram = [accepted.count(number) for number in range(width + 1)]
        said: dict[str, Any] = {
            "num_spec_tokens": width,
            "num_spec_steps": len(accepted),
            "num_draft_tokens": width * len(accepted),
            "num_accepted_draft_tokens": sum(accepted),
            "acceptance_histogram": histogram,
        }
        if self.level == "detailed" and accepted:
            said |= {"per_step_accepted": accepted, "per_step_drafted": [width] * len(accepted)}
        self.per_pos = self.per_pos or [0] * width
        self.per_pos = [per_po + sum(histogram[place + 1 :]) for place, per_po in enumerate(self.per_pos)]
        for name, number in (("drafts", len(accepted)), ("draft", width * len(accepted)), ("accepted", sum(accepted))):
            self.counters[name] += number
        self.counters["done"] += 1
        self.num_generated += len(tokens)
        return parts, said if width and self.level != "none" else None

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Every event of a good answer, the last of them what it used."""
        parts, said = self.chunks(body)
        events = []
        for place, part in enumerate(parts):
            choice: dict[str, Any] = {"index": 0, "text": text_of(part)}
            if self.returns_token_ids:
                choice["token_ids"] = part
            if body.get("logprobs") and self.tells_logprobs:
                if self.enforces and self.restriction(body):  # as vLLM: of every token, after the mask
                    tops = [{f"token_id:{each}": -0.25, "token_id:9": -1.0} for each in part]
                else:  # of the first one, which is all that anybody reads
                    first, second = self.top_logprobs
                    tops = [] if place else [{"token_id:5": -1.5, "token_id:6": first, "token_id:7": second}]
                choice["logprobs"] = {"top_logprobs": tops}
            choice["finish_reason"] = end_of(parts, body["max_tokens"]) if place == len(parts) - 1 else None
            events.append({"model": self.model, "choices": [choice]})
        usage: dict[str, Any] = {"prompt_tokens": len(body["prompt"]), "completion_tokens": sum(map(len, parts))}
        if self.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens(body)}
        metrics: dict[str, Any] = {"queue_time_ms": self.queue_ms} if self.tells_queue else {}
        metrics |= {} if said is None else {"speculative_decoding": said}
        events = [*events, {"model": self.model, "choices": [], "usage": usage, "metrics": metrics}]
        return self.chat_events(body, events) if body.get("is_chat") else events

    def chat_events(self, body: dict[str, Any], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same answer as a chat's: its first tokens are thought where the template is told so, the rest is said."""
        kept = [self.model, *self.adapters]
        model = body["model"] if body["model"] in kept else self.model
        first = {"role": "assistant", "content": ""}
        chat: list[dict[str, Any]] = [{"model": model, "choices": [{"index": 0, "delta": first}]}]
        if self.returns_token_ids:
            chat[0]["prompt_token_ids"] = body["prompt"]
        thinks = bool((body.get("chat_template_kwargs") or {}).get("enable_thinking"))
        thought = body["max_tokens"] // 2 if thinks else 0
        number = 0
        for event in events:
            choices = []
            for choice in event["choices"]:
                text = choice.pop("text")
                said = text[max(0, thought - number) :]
                delta = {"reasoning": text[: len(text) - len(said)], "content": said}
                number += len(text)
                choices.append({**choice, "delta": {name: part for name, part in delta.items() if part}})
            chat.append({**event, "model": model, "choices": choices})
        return self.parsed(chat)


def rendered(body: dict[str, Any]) -> list[int]:
    """What the fake template makes of a chat: a token of each message's role, and one of each character."""
    texts = [f"{message['role'][0]}{message.get('content') or ''}" for message in body["messages"]]
    return tokens_of("".join(texts) + json.dumps(body.get("tools") or ""))


def tokens_of(text: str) -> list[int]:
    """What the fake tokenizer makes of a text: a token of each character."""
    return [2 + ord(character) % 50 for character in text]


CHARACTERS = 1_000  # in restricted answers a token is a character: its code point, from here on


def text_of(tokens: list[int]) -> str:
    return "".join(chr(each - CHARACTERS if each >= CHARACTERS else 97 + each % 26) for each in tokens)


def end_of(parts: list[list[int]], max_tokens: int) -> str:
    """Restricted answers end by themselves, the others at their length."""
    is_whole = parts[-1][-1] >= CHARACTERS and sum(map(len, parts)) < max_tokens
    return "stop" if is_whole else "length"


def restricted(form: str, value: Any, seed: int) -> str:
    """A text that a grammar allows."""
    if form == "choice":
        return str(value[seed % len(value)])
    if form == "regex":
        return "7" * (1 + seed % 5)  # of the tests' one pattern
    if form == "grammar":
        return "yes"
    if form == "structural_tag":
        tag = json.loads(value)["structures"][0] if isinstance(value, str) else value["structures"][0]
        return f"{tag['begin']}{json.dumps(instance(tag['schema'], seed))}{tag['end']}"
    return json.dumps({"any": seed} if form == "json_object" else instance(value, seed))


def instance(schema: dict[str, Any], seed: int) -> Any:
    """A value of a schema, of the few words of it that the tests use."""
    if "enum" in schema:
        return schema["enum"][seed % len(schema["enum"])]
    if "anyOf" in schema:
        return instance(schema["anyOf"][seed % len(schema["anyOf"])], seed)
    if schema.get("type") == "array":
        return [instance(schema["items"], seed)]
    if schema.get("type") in ("string", "integer"):
        return f"x{seed}" if schema["type"] == "string" else seed
    return {name: instance(each, seed) for name, each in schema.get("properties", {}).items()}


def place_logprobs(before: list[int], vocabulary: int = 160) -> list[float]:
    """Of every token after these, in the model that the server pretends to have."""
    logits = [-0.37 * ((37 * token + 11 * sum(before)) % vocabulary) ** 0.7 for token in range(vocabulary)]
    total = math.log(sum(map(math.exp, logits)))
    return [each - total for each in logits]


async def respond(writer: asyncio.StreamWriter, status: int, body: str, headers: str = "") -> None:
    content = body.encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(content)}\r\n{headers}\r\n".encode() + content)
    await writer.drain()


def begin(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")


async def send(writer: asyncio.StreamWriter, text: str) -> None:
    content = text.encode()
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
    await writer.drain()


async def send_event(writer: asyncio.StreamWriter, event: Any) -> None:
    await send(writer, f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n")


async def end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def after(change: Callable[[list[Any]], list[Any]], *, is_ended: bool = True) -> Behaviour:
    """An answer whose events are changed, [DONE] among them."""

    async def behave(server: FakeServer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        begin(writer)
        events = [*server.events(body), "[DONE]"]
        if server.prefill_s:
            cached = events[-2]["usage"]["prompt_tokens_details"]["cached_tokens"]
            await asyncio.sleep(server.prefill_s * (len(body["prompt"]) - cached))
        for event in change(events):
            await asyncio.sleep(server.step_s)
            await send_event(writer, event)
        if is_ended:
            await end(writer)

    return behave


well = after(list)


def status(code: int, headers: str = "") -> Behaviour:
    async def behave(_: FakeServer, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await respond(writer, code, '{"error": {"message": "the prompt was: hush"}}', headers)

    return behave


def raw(content: bytes) -> Behaviour:
    """These bytes, and the end of the connection."""

    async def behave(_: FakeServer, __: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        writer.close()

    return behave


def killed(num_events: int) -> Behaviour:
    """So many events, then every connection of the server is cut."""

    async def behave(server: FakeServer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        begin(writer)
        for event in server.events(body)[:num_events]:
            await send_event(writer, event)
        server.kill()

    return behave


def silent(num_events: int, comment_s: float | None = None) -> Behaviour:
    """So many events, then none, though the connection stays; with comments meanwhile where a time is given."""

    async def behave(server: FakeServer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        begin(writer)
        for event in server.events(body)[:num_events]:
            await send_event(writer, event)
        while not writer.is_closing():
            await asyncio.sleep(comment_s or 0.02)
            if comment_s is not None:
                await send(writer, ": alive\n\n")
            elif writer.transport.is_closing():
                break

    return behave


@contextmanager
def running(*servers: FakeServer, tls: ssl.SSLContext | None = None) -> Iterator[None]:
    """The servers on ports of their own, in a thread, as long as the block lasts."""
    loop = asyncio.new_event_loop()
    listening: list[asyncio.Server] = []

    async def start() -> None:
        for server in servers:
            start_server = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls)
            server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{start_server.sockets[0].getsockname()[1]}/"
            listening.append(start_server)

    async def stop() -> None:
        for item in listening:
            item.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
