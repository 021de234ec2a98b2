"""One server and everything that it may do wrong, on real sockets: the fault that each ends in, and that none hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowspec.errors import ConfigError
from shadowspec.servers.client import authorization, open_client, run_async, trust
from shadowspec.servers.identity import identify
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import ServerSettings, Waits
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import SamplingParameters
from tests.servers.fake_server import (
    Behaviour,
    FakeServer,
    after,
    begin,
    end,
    killed,
    raw,
    running,
    send_event,
    silent,
    status,
    well,
)
from tests.services import PATIENCE_S

SHORT = Waits(connect_s=1.0, first_token_s=0.4, token_s=0.3, total_s=2.0)  # where one is to be given up, and only there
REQUEST = ServerRequest((5, 6, 7), SamplingParameters(temperature=0.0, max_tokens=12), seed=1)


def settings(url: str, **changes: Any) -> ServerSettings:
    return replace(ServerSettings(url, "m", "cpu", "float32", url, max_attempts=3), **changes)


def ask(server: ServerSettings, request: ServerRequest = REQUEST) -> Completion:
    async def ask() -> Completion:
        async with open_client("baseline", server.baseline_url, server, trust(server.ca_file), 2) as client:
            return await client.complete(request, "salt")

    return run_async(ask())


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake_server = FakeServer(num_speculative_tokens=3, tells_queue=True, tells_cached=True)
    with running(fake_server):
        yield fake_server


def test_an_answer_is_its_tokens_its_times_and_what_the_server_says(server: FakeServer) -> None:
    answer = ask(settings(server.url))
    body = server.bodies[0]
    assert answer.token_ids == tuple(server.output(body))
    assert answer.num_output_tokens == sum(answer.chunk_sizes) == 12
    assert answer.chunk_sizes[0] == 1
    assert answer.sent_s < answer.first_token_s < answer.last_token_s
    lasted = answer.last_token_s - answer.first_token_s
    assert lasted / (len(answer.chunk_sizes) - 1) <= (answer.longest_gap_s or 0.0) <= lasted
    assert (answer.finish_reason, answer.cached_tokens, answer.queue_ms) == ("length", 0, 0.25)
    assert answer.speculation is not None
    assert sum(answer.speculation["per_step_accepted"]) == answer.speculation["num_accepted_draft_tokens"]
    assert (answer.num_attempts, answer.waited_s < 0.05) == (1, True)
    assert body["prompt"] == [5, 6, 7]
    assert body["stream_options"] == {"include_usage": True}


def test_the_longest_gap_is_between_chunks_with_tokens(server: FakeServer) -> None:
    """Not the wait for the first, nor for what follows the last, and whatever else comes meanwhile."""

    async def slow_in_the_middle(fake_server: FakeServer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        events = fake_server.events(body)
        await asyncio.sleep(1.5)
        begin(writer)
        for place, event in enumerate(events):
            if place == 2:
                await send_event(writer, {"model": "m", "choices": []})
                await asyncio.sleep(0.3)
            if place == len(events) - 1:
                await asyncio.sleep(1.5)
            await send_event(writer, event)
        await send_event(writer, "[DONE]")
        await end(writer)

    server.script.append(slow_in_the_middle)
    # What goes before may arrive late, and what follows too.
    assert 0.2 <= (ask(settings(server.url)).longest_gap_s or 0.0) < 1.4
    one = ServerRequest((5, 6, 7), SamplingParameters(temperature=0.0, max_tokens=1), seed=1)
    assert ask(settings(server.url), one).longest_gap_s is None


def test_every_sampling_parameter_is_sent_so_that_none_is_the_servers_to_choose(server: FakeServer) -> None:
    sampling = SamplingParameters(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, max_tokens=4, min_tokens=2, stop=("x",), stop_token_ids=(9,), ignore_eos=True,
    )  # fmt: skip
    ask(settings(server.url), ServerRequest((5,), sampling, seed=7))
    sent = server.bodies[0]
    assert {name: sent[name] for name in (
        "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "seed", "stream", "return_token_ids",
    )} == {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": 0.2,
        "frequency_penalty": 0.3, "max_tokens": 4, "min_tokens": 2, "stop": ["x"], "stop_token_ids": [9],
        "ignore_eos": True, "seed": 7, "stream": True, "return_token_ids": True,
    }  # fmt: skip


def no_usage(events: list[Any]) -> list[Any]:
    return [each for each in events if each == "[DONE]" or "usage" not in each]


def other(name: str, value: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda events: [each if each == "[DONE]" else each | {name: value} for each in events]


def in_first_choice(**changes: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda events: [events[0] | {"choices": [events[0]["choices"][0] | changes]}, *events[1:]]


def with_usage(**changes: Any) -> Callable[[list[Any]], list[Any]]:
    def changed(events: list[Any]) -> list[Any]:
        return [e if e == "[DONE]" or "usage" not in e else e | {"usage": e["usage"] | changes} for e in events]

    return changed


FAULTS: list[tuple[Behaviour, str, int]] = [  # what the server does, how it ends, how often it was asked
    (killed(0), "unreachable", 3),
    (killed(3), "cut_off", 3),
    (after(lambda events: events[:3]), "cut_off", 3),
    (silent(0), "first_token_timeout", 1),
    (silent(3), "token_timeout", 1),
    (silent(3, comment_s=0.05), "token_timeout", 1),
    (status(400), "http_400", 1),
    (status(404), "http_404", 1),
    (status(429), "http_429", 3),
    (status(429, "retry-after: 3600\r\n"), "http_429", 1),
    (status(500), "http_500", 3),
    (status(503, "retry-after: 0\r\n"), "http_503", 3),
    (status(307, "location: http://elsewhere.example/v1/completions?prompt=hush\r\n"), "redirected", 1),
    (raw(b"this is no HTTP at all\r\n\r\n"), "unreachable", 3),
    (raw(b"HTTP/1.1 200 OK\r\n\r\n<html>a login page</html>\n\n"), "garbage", 1),
    (raw(b"HTTP/1.1 200 OK\r\n\r\ndata: {broken\n\n"), "garbage", 1),
    (raw(b"HTTP/1.1 200 OK\r\n\r\ndata: \xff\xfe\n\n"), "garbage", 1),
    (raw(b"HTTP/1.1 200 OK\r\n\r\ndata: [1]\n\n"), "garbage", 1),
    (after(other("choices", "none")), "garbage", 1),
    (after(in_first_choice(token_ids=["5"])), "garbage", 1),
    (after(in_first_choice(token_ids=[1] * 13)), "garbage", 1),
    (after(lambda _: [{"error": {"type": "InternalServerError", "message": "hush"}}]), "server_error", 3),
    (after(lambda _: [{"error": {"type": "BadRequestError", "message": "hush", "code": 400}}]), "http_400", 1),
    (after(lambda _: [{"error": {"type": "TooManyRequests", "message": "hush", "code": 429}}]), "server_error", 3),
    (after(other("model", "another")), "other_model", 1),
    (after(no_usage), "no_usage", 1),
    (after(with_usage(completion_tokens=11)), "miscounted", 1),
    (after(with_usage(prompt_tokens=4)), "other_prompt", 1),
    (raw(b"HTTP/1.1 200 OK\r\n\r\ndata: " + b"[" * 100_000 + b"\n\n"), "garbage", 1),
    (after(in_first_choice(finish_reason="abort")), "unfinished", 1),
]


@pytest.mark.parametrize(
    ("behaviour", "code", "asked"), FAULTS, ids=[f"{i}-{code}" for i, (_, code, _) in enumerate(FAULTS)]
)
def test_every_fault_ends_soon_and_by_its_name(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, behaviour: Behaviour, code: str, asked: int
) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.01)
    server.script.extend([behaviour] * 3)
    if code == "unfinished":  # the reason that comes last counts
        server.script.clear()
        server.script.append(
            after(lambda e: [*e[:-3], e[-3] | {"choices": [e[-3]["choices"][0] | {"finish_reason": "abort"}]}, *e[-2:]])
        )
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        ask(settings(server.url, waits=SHORT if code.endswith("_timeout") else Waits()))
    assert caught.value.code == code
    assert len(server.bodies) == asked
    assert time.monotonic() - began < 20.0, "what is no answer is not waited for"
    assert "hush" not in str(caught.value)
    assert str(caught.value).startswith("baseline server 127.0.0.1:")


def test_a_redirect_is_refused_by_the_name_of_its_host_alone(server: FakeServer) -> None:
    with running(stranger := FakeServer()):
        server.redirect = stranger.url + "v1/completions"
        with pytest.raises(ServerError, match=r"points to 127\.0\.0\.1; redirects are not followed") as caught:
            ask(settings(server.url))
        assert "secret" not in str(caught.value)
        assert stranger.num_connections == 0, "a host that no configuration names was contacted"


def test_a_stream_that_never_ends_is_given_up_at_the_total_time(server: FakeServer) -> None:
    server.step_s = 0.1  # well within the time for a token
    with pytest.raises(ServerError) as caught:
        ask(settings(server.url, waits=Waits(total_s=0.35)))
    assert caught.value.code == "total_timeout"


def test_nobody_listens(server: FakeServer) -> None:
    with running(gone := FakeServer()):
        url = gone.url
    with pytest.raises(ServerError) as caught:
        ask(settings(url, max_attempts=1))
    assert (caught.value.code, caught.value.is_retryable) == ("unreachable", True)


@pytest.mark.parametrize("first", [killed(3), status(503), status(500), raw(b"")])
def test_what_is_sent_anew_counts_once(server: FakeServer, monkeypatch: pytest.MonkeyPatch, first: Behaviour) -> None:
    """Of the first attempt only its time is kept, and its prompt is in no cache of ours."""
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.3)
    server.script.append(first)
    began = time.perf_counter()
    answer = ask(settings(server.url))
    took_s = time.perf_counter() - began
    assert answer.num_attempts == len(server.bodies) == 2
    assert answer.token_ids == tuple(server.output(server.bodies[1]))
    assert answer.waited_s > 0.25
    assert answer.waited_s + answer.last_token_s - answer.sent_s <= took_s, "the wait is in one of the two only"
    assert server.bodies[0]["cache_salt"] != server.bodies[1]["cache_salt"]


def test_a_server_that_asks_for_time_is_given_it(server: FakeServer) -> None:
    server.script.append(status(429, "retry-after: 1\r\n"))
    began = time.perf_counter()
    answer = ask(settings(server.url))
    took_s = time.perf_counter() - began
    assert answer.waited_s >= 1.0
    assert answer.waited_s + answer.last_token_s - answer.sent_s <= took_s


def twice_done(events: list[Any]) -> list[Any]:
    return [*events, "[DONE]", "[DONE]"]


def never_done(events: list[Any]) -> list[Any]:
    return events[:-1]


@pytest.mark.parametrize("change", [twice_done, never_done, lambda events: [*events, "and more"]])
def test_what_follows_a_whole_answer_does_not_matter(
    server: FakeServer, change: Callable[[list[Any]], list[Any]]
) -> None:
    server.script.append(after(change))
    assert ask(settings(server.url)).num_output_tokens == 12


def test_a_connection_that_stays_open_after_the_end_holds_nobody_up(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowspec.servers.client.END_S", 0.1)
    server.script.append(after(list, is_ended=False))
    server.script.append(well)
    began = time.monotonic()
    assert ask(settings(server.url)).num_output_tokens == 12
    assert time.monotonic() - began < PATIENCE_S


def test_texts_may_hold_what_python_takes_for_the_end_of_a_line(server: FakeServer) -> None:
    text = "a\u2028b\x85c"

    async def behave(fake_server: FakeServer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        events = fake_server.events(body)
        events[0]["choices"][0]["text"] = text
        content = "".join(f"data: {json.dumps(each, ensure_ascii=False)}\r\n\r\n" for each in events).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        for byte in range(0, len(content), 7):  # in parts that end anywhere
            writer.write(content[byte : byte + 7])
            await writer.drain()
        writer.close()

    server.script.append(behave)
    answer = ask(settings(server.url))
    assert answer.text.startswith(text)
    assert answer.num_output_tokens == 12


def test_without_token_ids_the_servers_own_count_stands(server: FakeServer) -> None:
    server.returns_token_ids = False
    answer = ask(settings(server.url))
    assert (answer.token_ids, answer.chunk_sizes, answer.num_output_tokens) == (None, (), 12)


@pytest.mark.parametrize("number", [0, 13, 10**30, None, True])
def test_a_count_that_cannot_be_is_not_taken(server: FakeServer, number: Any) -> None:
    server.returns_token_ids = False
    server.script.append(after(with_usage(completion_tokens=number)))
    with pytest.raises(ServerError) as caught:
        ask(settings(server.url))
    assert caught.value.code == "miscounted"


@pytest.mark.parametrize("number", [-1, 4, 10**30, "3", True])
def test_cached_tokens_that_cannot_be_are_not_known(server: FakeServer, number: Any) -> None:
    server.script.append(after(with_usage(prompt_tokens_details={"cached_tokens": number})))
    assert ask(settings(server.url)).cached_tokens is None


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1", None, True])
def test_a_queue_time_that_cannot_be_is_not_known(server: FakeServer, value: Any) -> None:
    server.script.append(after(other("metrics", {"queue_time_ms": value})))
    assert ask(settings(server.url)).queue_ms is None


def test_nothing_of_a_request_is_logged(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SERVER_KEY", "open sesame")
    caplog.set_level(logging.DEBUG)
    ask(settings(server.url, api_key_variable="SERVER_KEY"))
    server.redirect = "http://elsewhere.example/v1/completions"
    with pytest.raises(ServerError):
        ask(settings(server.url))
    written = "".join(record.getMessage() for record in caplog.records if not record.name.startswith("asyncio"))
    assert written == ""


def test_the_key_comes_from_the_environment_and_shows_nowhere(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "open sesame"
    server_settings = settings(server.url, api_key_variable="SERVER_KEY")
    with pytest.raises(ConfigError, match="SERVER_KEY is not set"):
        ask(server_settings)
    monkeypatch.setenv("SERVER_KEY", "wrong")
    with pytest.raises(ServerError, match="HTTP 401: is the key right") as caught:
        ask(server_settings)
    assert "wrong" not in str(caught.value)
    monkeypatch.setenv("SERVER_KEY", "open sesame")
    assert ask(server_settings).num_output_tokens == 12
    assert "open sesame" not in repr(server_settings)
    assert authorization(settings(server.url)) == {}


def test_no_proxy_of_the_environment_is_used(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(proxy := FakeServer()):
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert ask(settings(server.url)).num_output_tokens == 12
        assert proxy.num_connections == 0


def test_certificates_are_verified(tmp_path: Path) -> None:
    """A server with a certificate of an unknown authority is not spoken to; with its file of authorities it is."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with running(server := FakeServer(), tls=context):
        with pytest.raises(ServerError) as caught:
            ask(settings(server.url, max_attempts=1))
        assert caught.value.code == "unreachable"
        assert server.bodies == []
        assert ask(settings(server.url, ca_file=certificate)).num_output_tokens == 12
    with pytest.raises(ConfigError, match="no certificate"):
        trust(tmp_path / "key.pem")


def test_a_server_says_what_it_is(server: FakeServer) -> None:
    async def look(model: str) -> Any:
        server_settings = settings(server.url)
        async with open_client("baseline", server_settings.baseline_url, server_settings, trust(None), 1) as client:
            return await identify(client, model)

    found = run_async(look("m"))
    assert (found.name, found.root, found.max_model_len) == ("vllm/0.32.0", "/models/t", 1024)
    with pytest.raises(ServerError, match="it serves m, and not n"):
        run_async(look("n"))


def test_a_look_on_a_connection_that_the_server_ended_is_taken_again(server: FakeServer) -> None:
    async def look(cuts: int) -> str | None:
        server_settings = settings(server.url)
        async with open_client("baseline", server_settings.baseline_url, server_settings, trust(None), 1) as client:
            server.cut_looks = cuts
            return await client.look("version")

    assert "0.32.0" in (run_async(look(1)) or "")
    with pytest.raises(ServerError, match="cannot be reached"):
        run_async(look(2))


def ask_for_logprobs(server: ServerSettings) -> Any:
    async def look() -> Any:
        async with open_client("baseline", server.baseline_url, server, trust(server.ca_file), 2) as client:
            return await client.prompt_logprobs((5, 6, 7), 1, 3, "salt")

    return run_async(look())


def test_what_is_asked_without_a_stream_is_asked_anew_like_the_rest(server: FakeServer) -> None:
    server.scoring_script.extend([status(503), killed(0)])
    assert [len(each) for each in ask_for_logprobs(settings(server.url))] in ([3, 3], [3, 4], [4, 3], [4, 4])
    (body,) = server.scored
    assert (body["model"], body["prompt"], body["stream"], body["max_tokens"]) == ("m", [5, 6, 7], False, 1)
    assert body["cache_salt"].startswith("salt"), "what was asked before must not be found in a cache"


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (status(400), "http_400"),
        (status(307, "location: http://elsewhere.example/\r\n"), "redirected"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhush!"), "garbage"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]"), "garbage"),
        (raw(b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"model":"n"}'), "other_model"),
        (raw(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{}"), "cut_off"),
        (silent(0), "total_timeout"),
    ],
)
def test_an_answer_without_a_stream_is_one_or_says_why_not(server: FakeServer, behaviour: Behaviour, code: str) -> None:
    server.scoring_script.append(behaviour)
    with pytest.raises(ServerError) as caught:
        ask_for_logprobs(
            settings(server.url, max_attempts=1, waits=Waits(total_s=0.3) if code == "total_timeout" else Waits())
        )
    assert caught.value.code == code
    assert "hush" not in str(caught.value)


def test_an_answer_that_is_larger_than_can_be_is_not_read(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.servers.client.MAX_ANSWER_BYTES", 200)
    with pytest.raises(ServerError, match="exceeds the size limit"):
        ask_for_logprobs(settings(server.url))
