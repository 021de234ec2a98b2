"""The classifier: a request gets the slice that the tap gives its mirrored record."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.app import timed_http
from shadowspec.app.serve_classifier import LARGE_BODY_BYTES, MAX_LARGE_BODIES, ClassifierApp, listening_socket
from shadowspec.demo import SERVED_MODELS, TARGET, TRAFFIC
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.errors import RecordError
from shadowspec.servers.client import run_async
from shadowspec.tap.classifier import Classified, Classifier
from shadowspec.tap.endpoints import MatchRule
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.reading import Reader, Reading
from shadowspec.tap.routing import NO_HINTS, Routing
from shadowspec.tap.sources import read_records
from tests.fakes import endpoint_rule
from tests.services import PATIENCE_S
from tests.tap.mirror import RULE, SECRET, ByteTokenizer, chat, messages, raw, responses

HASH = KeyedHash(SECRET)
SLICED = endpoint_rule(
    name="chat",
    served_models=("model-a",),
    match=MatchRule(model="model-*"),
    slice_by=("prompt_class", "sampling_regime", "context_bucket", "language", "tenant", "tier"),
    labels={"tier": ("gold",)},
    client_labels=True,
    sample_rate=0.01,  # every request is classified all the same
)


def classifier(rule: Any = SLICED, routing: Routing | None = None) -> Classifier:
    return Classifier([rule], {rule.name: ByteTokenizer()}, HASH, routing)


def of_tap(record: dict[str, Any], rule: Any = SLICED) -> Reading:
    reader = Reader([replace(rule, sample_rate=1.0)], {rule.name: ByteTokenizer()}, HASH)
    (opened,) = open_message(raw(record), MessageFormat.OPENAI)
    (reading,) = reader.read([(opened, NO_HINTS)])
    return reading


def of_gateway(record: dict[str, Any], **headers: str) -> Classified:
    body = json.dumps(record["request"]).encode()
    return classifier().classify(
        body, path=record["path"], headers=[(name.replace("_", "-"), value.encode()) for name, value in headers.items()]
    )


@given(
    text=st.text(max_size=600).filter(str.strip),
    temperature=st.sampled_from([0.0, 0.3, 0.9]),
    tools=st.booleans(),
    json_mode=st.booleans(),
    tier=st.sampled_from([None, "gold", "not a label"]),
    tenant=st.sampled_from([None, "acme"]),
)
def test_the_slice_is_that_of_the_tap(
    text: str, temperature: float, tools: bool, json_mode: bool, tier: str | None, tenant: str | None
) -> None:
    record = chat(
        request_messages=[{"role": "user", "content": text}],
        request_temperature=temperature,
        request_tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}] if tools else None,
        request_response_format={"type": "json_object"} if json_mode else None,
        request_metadata={} if tier is None else {"tier": tier},
        tenant=tenant,
    )
    headers = {} if tenant is None else {"x_tenant_id": tenant}
    measured, classified = of_tap(record), of_gateway(record, **headers)
    assert classified.slice_key == measured.slice_key
    assert classified.reason == (None if measured.error is None else measured.error.reason)


@pytest.mark.parametrize("record", [responses("Translate to French: hello"), messages("Translate to French: hello")])
def test_other_apis_have_the_slice_of_the_tap(record: dict[str, Any]) -> None:
    found = of_gateway(record).slice_key
    assert found is not None
    assert found == of_tap(record).slice_key


def test_the_bundled_traffic_has_the_slices_of_the_tap() -> None:
    rules = [
        endpoint_rule(name=name, served_models=(model,), match=MatchRule(model=model))
        for name, model in SERVED_MODELS.items()
    ]
    tokenizer = load_tokenizer(str(TARGET))
    tokenizers = {rule.name: tokenizer for rule in rules}
    reader, gateway = Reader(rules, tokenizers, HASH), Classifier(rules, tokenizers, HASH)
    num_slices = 0
    for message in read_records(str(TRAFFIC)):
        for reading in reader.read([(opened, NO_HINTS) for opened in open_message(message, MessageFormat.OPENAI)]):
            if reading.slice_key is None:
                continue
            body = json.dumps(reading.record.request).encode()
            found = gateway.classify(body, path=reading.record.request_path)
            assert (found.endpoint, found.slice_key) == (reading.rule.name, reading.slice_key)
            num_slices += 1
    assert num_slices > 3_000


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_json"),
        (b"[1]", "invalid:request"),
        (b"{}", "no_endpoint"),
        (b'{"model": "other", "prompt": "x"}', "no_endpoint"),
        (b'{"model": "model-b", "prompt": "x"}', "other_model"),
        (b'{"model": "model-a", "prompt": "x", "n": 2}', "several_choices"),
    ],
)
def test_a_request_that_the_tap_refuses_has_no_slice(body: bytes, reason: str) -> None:
    found = classifier().classify(body, path="/v1/completions")
    assert (found.slice_key, found.tag, found.reason) == (None, None, reason)


@given(st.binary(max_size=300))
def test_no_bytes_raise(body: bytes) -> None:
    assert classifier().classify(body).tag is None


def test_the_endpoint_may_be_in_a_header() -> None:
    rule = endpoint_rule(name="chat", served_models=("model-a",), match=MatchRule(endpoint="prod-chat"))
    found = classifier(rule, Routing(endpoint="header:X-Route"))
    body = json.dumps(chat()["request"]).encode()
    assert found.classify(body, headers=[("x-route", b"prod-chat")]).endpoint == "chat"
    assert found.classify(body).reason == "no_endpoint"


def call(app: ClassifierApp, *parts: bytes, path: str = "/v1/chat/completions") -> tuple[int, dict[str, str]]:
    """One call of the application as an ASGI server makes it; the body in parts."""
    inbox = [
        {"type": "http.request", "body": part, "more_body": number < len(parts)} for number, part in enumerate(parts, 1)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return inbox.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    run_async(app({"type": "http", "path": path, "headers": []}, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_the_answer_names_the_slice_in_headers() -> None:
    body = json.dumps(chat()["request"]).encode()
    status, headers = call(ClassifierApp(classifier(RULE)), body[:10], body[10:])
    tag = "chat/prompt_class=chat;sampling_regime=high"
    assert status == 200
    assert headers == {
        "content-length": "0",
        "x-shadowspec-endpoint": "chat",
        "x-shadowspec-slice": tag,
        "x-litellm-tags": f"{tag},chat",
    }


def test_a_request_without_a_slice_is_answered_with_none() -> None:
    """A gateway replaces the client's header of that name, so that no client chooses its pool."""
    status, headers = call(ClassifierApp(classifier()), b"{")
    assert status == 200
    assert headers["x-shadowspec-slice"] == headers["x-shadowspec-endpoint"] == "none"
    assert headers["x-shadowspec-reason"] == "not_json"
    assert "x-litellm-tags" not in headers


def test_a_body_beyond_the_limit_is_not_kept() -> None:
    _, headers = call(ClassifierApp(classifier(), max_body_bytes=100), b" " * 60, b" " * 60, b"never read")
    assert (headers["x-shadowspec-reason"], headers["connection"]) == ("too_large", "close")


class HeldClassifier:
    """Large bodies wait until they are let go."""

    def __init__(self) -> None:
        self.may_go = threading.Event()

    def classify(self, body: bytes, **_: object) -> Classified:
        if len(body) > LARGE_BODY_BYTES:
            assert self.may_go.wait(PATIENCE_S)
        return Classified("chat", "k=v")


@pytest.fixture
def served() -> Iterator[tuple[HeldClassifier, int]]:
    """A server of it on a port of this machine, as `classify --listen` makes one."""
    held = HeldClassifier()
    server = timed_http.make_server(ClassifierApp(held))  # type: ignore[arg-type]
    with listening_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield held, listener.getsockname()[1]
        finally:
            held.may_go.set()
            server.should_exit = True
            thread.join(PATIENCE_S)


def post(port: int, body: bytes, **headers: str) -> http.client.HTTPResponse:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer


def test_a_slow_body_holds_up_no_other(served: tuple[HeldClassifier, int]) -> None:
    held, port = served
    with ThreadPoolExecutor(MAX_LARGE_BODIES + 1) as callers:
        slow = [callers.submit(post, port, b" " * (LARGE_BODY_BYTES + 1)) for _ in range(MAX_LARGE_BODIES + 1)]
        busy = next(as_completed(slow, PATIENCE_S)).result()  # one too many
        assert busy.headers["x-shadowspec-reason"] == "busy"
        assert post(port, b"{}").headers["x-shadowspec-slice"] == "chat/k=v"
        held.may_go.set()
        answers = [future.result(PATIENCE_S).headers["x-shadowspec-slice"] for future in slow]
    assert sorted(answers) == ["chat/k=v"] * MAX_LARGE_BODIES + ["none"]


@pytest.mark.parametrize(
    "beginning",
    [b"", b"POST / HTTP/1.1\r\nHost: x\r\n", b"POST / HTTP/1.1\r\nHost: x\r\ncontent-length: 1000\r\n\r\nhalf"],
    ids=["nothing", "half of the headers", "half of the body"],
)
def test_a_request_that_does_not_come_ends_its_connection(
    beginning: bytes, served: tuple[HeldClassifier, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_http, "REQUEST_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", served[1]), timeout=PATIENCE_S) as connection:
        connection.sendall(beginning)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""


def test_a_large_body_is_refused_before_it_is_sent(served: tuple[HeldClassifier, int]) -> None:
    with socket.create_connection(("127.0.0.1", served[1]), timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\ncontent-length: 16000000\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"x-shadowspec-reason: too_large" in answer


def test_a_connection_stays_for_the_next_request(
    served: tuple[HeldClassifier, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_http, "REQUEST_TIMEOUT_S", 0.2)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served[1], timeout=PATIENCE_S)) as connection:
        for _ in range(3):
            connection.request("POST", "/", b"{}")
            answer = connection.getresponse()
            answer.read()
            assert answer.headers["x-shadowspec-slice"] == "chat/k=v"
            time.sleep(0.3)  # longer than one request may take


def test_an_upgrade_is_an_ordinary_request(served: tuple[HeldClassifier, int]) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    assert post(served[1], b"{}", **upgrade).status == 200


def test_a_text_of_many_contexts_is_refused_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_tokenizer(TARGET)
    lengths: list[int] = []
    encode = type(tokenizer)._ids

    def counted(self: Any, text: str, **options: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **options)

    monkeypatch.setattr(type(tokenizer), "_ids", counted)
    text = "a word or two " * 1_000_000
    with pytest.raises(RecordError, match="longer_than_context"):
        tokenizer.encode(text)
    with pytest.raises(RecordError, match="longer_than_context"):
        tokenizer.render_chat([{"role": "user", "content": text}], None)
    assert max(lengths) < len(text) / 50
