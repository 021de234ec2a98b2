"""Chats through two servers: what is sent, what is put together from deltas, and which faults of streams are found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.types import Block, Contract, OutputContract, Run, StreamParity, Thinking, Validity
from tests.builders.server_blocks import block, connected
from tests.identities import check_identities
from tests.servers.fake_server import FakeServer, rendered, running
from tests.servers.fake_sglang import FakeSglang

BODY: dict[str, Any] = {
    "model": "gateway-name",
    "messages": [{"role": "system", "content": "short"}, {"role": "user", "content": "What is the price of a canary?"}],
    "temperature": None,
    "max_tokens": 500,
    "tools": [{"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}],
    "response_format": {"type": "text"},
    "reasoning_effort": "low",
    "stream": False,
    "request_id": "once",
}
Events = list[dict[str, Any]]


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(tells_cached=True), FakeServer(3, tells_cached=True)
    with running(*pair):
        yield pair


def chats(*bodies: dict[str, Any], contract: OutputContract | None = None, **sampling: Any) -> Block:
    """A block of these chats."""
    made = block(len(bodies))
    requests = tuple(
        structs.replace(
            request,
            chat=json.dumps(body).encode(),
            prompt_token_ids=tuple(rendered(body)),
            sampling=structs.replace(request.sampling, max_tokens=12, **sampling),
            contract=contract,
        )
        for request, body in zip(made.requests, bodies, strict=True)
    )
    return structs.replace(made, requests=requests)


def the_run(engine: ServerEngine, body: dict[str, Any] = BODY, **changes: Any) -> Run:
    (run,) = engine.measure(chats(body, **changes)).runs
    return run


def test_both_servers_get_the_client_s_body_with_sampling_seed_and_limit_explicit(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    run = the_run(connected(servers), seed=77)
    assert run.failure is None
    for server in servers:
        (body,) = (sent for sent in server.bodies if sent.get("is_chat"))
        for name in ("messages", "tools", "response_format", "reasoning_effort"):
            assert body[name] == BODY[name]
        explicit = {
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": 0,
            "seed": 77,
            "max_completion_tokens": 12,
            "stream": True,
        }
        assert body | explicit == body
        assert body["model"] == "m"
        assert "request_id" not in body
    assert run.counts is not None
    check_identities(run.counts)
    assert run.counts.num_prompt_tokens == len(rendered(BODY))
    assert run.stream == StreamParity("whole", "whole", is_stream_fault=False)


def test_the_name_of_an_adapter_that_both_serve_stays(servers: tuple[FakeServer, FakeServer]) -> None:
    for server in servers:
        server.adapters = ("poet",)
    assert the_run(connected(servers), BODY | {"model": "poet"}).failure is None
    assert {sent["model"] for server in servers for sent in server.bodies if sent.get("is_chat")} == {"poet"}


def test_arms_that_render_a_chat_otherwise_leave_no_run(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].rendered = lambda body: [1, *rendered(body)]
    assert the_run(connected(servers)).failure == "speculative_other_prompt"


def test_the_server_s_own_rendering_counts_and_parity_is_judged_by_it(servers: tuple[FakeServer, FakeServer]) -> None:
    """A template of the servers' own is no fault here: both have it."""
    for server in servers:
        server.rendered = lambda body: [1, 2, *rendered(body)]
    servers[1].lost_token = 4
    run = the_run(connected(servers))
    assert run.counts is not None
    assert run.counts.num_prompt_tokens == 2 + len(rendered(BODY))
    assert run.parity is not None
    assert run.parity.first_divergence == 4
    (asked,) = (sent for sent in servers[0].bodies if sent.get("logprobs"))
    assert asked["prompt"][:2] == [1, 2]


def test_thinking_and_answer_are_told_apart(servers: tuple[FakeServer, FakeServer]) -> None:
    run = the_run(connected(servers), BODY | {"chat_template_kwargs": {"enable_thinking": True}})
    assert run.stream == StreamParity("whole", "whole", is_stream_fault=False)
    assert isinstance(run.thinking, Thinking)
    assert run.thinking.baseline_thinking_tokens == 6
    assert run.thinking.speculative_thinking_tokens is not None
    assert run.thinking.speculative_thinking_tokens <= 6
    assert run.counts is not None
    drafts, accepted = run.thinking.num_thinking_drafts, run.thinking.num_thinking_accepted_tokens
    assert drafts is not None
    assert accepted is not None
    assert 0 < drafts < run.counts.num_drafts
    assert run.thinking.num_thinking_draft_tokens == 3 * drafts
    assert accepted + drafts + 1 == run.thinking.speculative_thinking_tokens
    assert (run.thinking.speculative_thinking_ms or 0.0) > 0.0


def deltas(events: Events) -> list[dict[str, Any]]:
    return [choice["delta"] for event in events for choice in event["choices"]]


def losing(place: int) -> Callable[[Events], Events]:
    """A parser that loses the text of one delta, as one that is given several tokens at once."""

    def change(events: Events) -> Events:
        deltas(events)[place]["content"] = ""
        return events

    return change


def doubling(events: Events) -> Events:
    for delta in deltas(events)[2:3]:
        delta["content"] *= 2
    return events


def leaking(events: Events) -> Events:
    deltas(events)[1]["content"] = "</think>" + deltas(events)[1].get("content", "")
    return events


def moving(events: Events) -> Events:
    """Content that should not be reasoning."""
    delta = deltas(events)[2]
    delta["reasoning"] = delta.pop("content")
    return events


def miscounting(events: Events) -> Events:
    events[-1]["usage"]["completion_tokens"] -= 1
    return events


def promising_calls(events: Events) -> Events:
    events[-2]["choices"][0]["finish_reason"] = "tool_calls"
    return events


def calling(*parts: dict[str, Any]) -> Callable[[Events], Events]:
    """The answer is a tool call in these parts."""

    def change(events: Events) -> Events:
        for delta in deltas(events)[1:]:
            delta.pop("content", None)
        for delta, part in zip(deltas(events)[1:], parts, strict=False):
            delta["tool_calls"] = [part]
        events[-2]["choices"][0]["finish_reason"] = "tool_calls"
        return events

    return change


CALL = (
    {"index": 0, "id": "a", "type": "function", "function": {"name": "price", "arguments": ""}},
    {"index": 0, "function": {"arguments": '{"bird": '}},
    {"index": 0, "function": {"arguments": '"canary"}'}},
)
MERGED = (
    {"index": 0, "id": "a", "type": "function", "function": {"name": "price", "arguments": '{"bird": "canary"}'}},
)
CUT = CALL[:2]
PLACELESS = (*CALL[:2], {"function": {"arguments": '"canary"}'}})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (losing(2), "message"),
        (doubling, "message"),
        (moving, "message"),
        (leaking, "marker"),
        (miscounting, "usage"),
        (promising_calls, "finish_reason"),
    ],
)
def test_a_fault_of_the_speculative_stream_is_proven_by_the_same_tokens(
    servers: tuple[FakeServer, FakeServer], change: Callable[[Events], Events], fault: str
) -> None:
    servers[1].parsed = change
    assert the_run(connected(servers)).stream == StreamParity("whole", fault, is_stream_fault=True)


@pytest.mark.parametrize("change", [losing(2), leaking, miscounting, promising_calls])
def test_a_fault_of_the_baseline_is_not_speculation_s(
    servers: tuple[FakeServer, FakeServer], change: Callable[[Events], Events]
) -> None:
    servers[0].parsed = change
    stream = the_run(connected(servers)).stream
    assert stream is not None
    if change in (leaking, miscounting, promising_calls):
        assert not stream.is_stream_fault
        assert stream.baseline_stream != "whole"
    for server in servers:
        server.parsed = change
    both = the_run(connected(servers)).stream
    assert both is not None
    assert not both.is_stream_fault


def test_a_leak_in_an_output_that_differs_may_be_the_model_s(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].parsed, servers[1].lost_token = leaking, 3
    assert the_run(connected(servers)).stream == StreamParity("whole", "marker", is_stream_fault=False)


def test_calls_are_put_together_however_their_parts_come(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[0].parsed, servers[1].parsed = calling(*CALL), calling(*MERGED)
    contract = OutputContract(Contract.TOOL_CALL, tuple(BODY["tools"]))
    run = the_run(connected(servers), contract=contract)
    assert run.stream == StreamParity("whole", "whole", is_stream_fault=False)
    assert (run.flags.baseline_validity, run.flags.speculative_validity) == (Validity.VALID, Validity.VALID)
    assert run.finish_reason == "tool_calls"


@pytest.mark.parametrize(("parts", "fault"), [(CUT, "call_arguments"), (PLACELESS, "call_places")])
def test_a_call_that_lost_a_part_is_a_fault(
    servers: tuple[FakeServer, FakeServer], parts: tuple[dict[str, Any], ...], fault: str
) -> None:
    servers[0].parsed, servers[1].parsed = calling(*CALL), calling(*parts)
    assert the_run(connected(servers)).stream == StreamParity("whole", fault, is_stream_fault=True)


def test_no_fault_is_found_in_a_thousand_clean_pairs(servers: tuple[FakeServer, FakeServer]) -> None:
    for server in servers:
        server.step_s = 0.0
    engine = connected(servers)
    bodies = [
        BODY | {"messages": [{"role": "user", "content": f"bird {number}"}], "tools": None} for number in range(100)
    ]
    found: list[StreamParity | None] = []
    for first in range(0, 1_000, 100):
        kwargs = {"chat_template_kwargs": {"enable_thinking": bool(first % 200)}}
        for run in engine.measure(chats(*(body | kwargs for body in bodies))).runs:
            assert run.failure is None
            found.append(run.stream)
    assert found == [StreamParity("whole", "whole", is_stream_fault=False)] * 1_000


@pytest.mark.parametrize("thinks", [False, True])
def test_a_chat_of_sglang_is_counted_by_its_own_answer(thinks: bool) -> None:
    pair = FakeSglang(), FakeSglang(3)
    body = BODY | {"chat_template_kwargs": {"enable_thinking": thinks}}
    with running(*pair):
        run = the_run(connected(pair), body)
        assert run.failure is None
        assert run.served is not None
        assert run.counts is not None
        assert (run.served.counts_source, run.counts.num_output_tokens) == ("meta_info", 12)
        histogram = run.counts.acceptance_histogram
        assert sum(place * number for place, number in enumerate(histogram)) == run.counts.num_accepted_tokens > 0
        assert (run.thinking is not None) is thinks
        if run.thinking is not None:
            assert run.thinking.baseline_thinking_tokens == 6
        for fake in pair:
            timed, *others = fake.bodies
            assert timed["return_spec_tokens_details"]
            assert not [sent for sent in others if not sent.get("return_logprob")], "nothing is sent again"


def test_a_chat_of_an_older_sglang_is_sent_again_as_tokens() -> None:
    pair = FakeSglang(extends_chats=False), FakeSglang(3, extends_chats=False)
    with running(*pair):
        run = the_run(connected(pair))
    assert (run.failure, run.served is not None and run.served.counts_source) == (None, "again")
    assert [sent["input_ids"] for sent in pair[1].bodies if "input_ids" in sent][:1] == [rendered(BODY)]


@pytest.mark.parametrize("ids", [None, [], [[1], [2]], [["a"]], [7]])
def test_ids_of_another_form_count_no_chat(ids: Any) -> None:
    def garbled(fake: FakeSglang) -> FakeSglang:
        said = fake.events

        def events(body: dict[str, Any]) -> Events:
            found = said(body)
            for event in found:
                if "sglext" in event:
                    event["sglext"]["output_ids"] = ids
            return found

        fake.events = events  # type: ignore[method-assign]
        return fake

    pair = FakeSglang(), garbled(FakeSglang(3))
    with running(*pair):
        run = the_run(connected(pair))
    assert run.served is not None
    assert run.served.counts_source == "again"


def test_an_engine_whose_chats_report_no_steps_is_sent_the_tokens_again(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(servers)
    for server in engine._servers.values():
        server.engine.counts_chat = lambda _: False  # type: ignore[method-assign]
    run = the_run(engine)
    assert run.failure is None
    assert run.served is not None
    assert run.served.counts_source == "again"
    for fake in servers:
        timed, *again = fake.bodies
        assert timed["is_chat"]
        assert [sent["prompt"] for sent in again if not sent.get("logprobs")][:1] == [rendered(BODY)]
