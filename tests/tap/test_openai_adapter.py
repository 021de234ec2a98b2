"""The OpenAI adapter: what is read, what is refused and with which reason, and that nothing else is ever raised."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.tap.admission import Admitted
from shadowspec.tap.bodies import ResponseBody, convert_or_refuse
from shadowspec.tap.parameters import CONSTRAINING, HARMLESS, NEUTRAL, READ, RENDERING
from shadowspec.types import Contract, FunnelCounter, OutputContract, SamplingParameters, ShadowPrompt
from tests.tap.mirror import RULE, START, chat, fate, fates, first_only, messages, responses

MEASURED = (FunnelCounter.MEASURED, None)


def admitted(record: Any, **rule_changes: Any) -> ShadowPrompt:
    decided = fates([record], replace(first_only(RULE), **rule_changes))[0]
    assert isinstance(decided, Admitted), decided.record
    return decided.prompt


def completion(**changes: Any) -> dict[str, Any]:
    base = {"path": "/v1/completions", "request_messages": None, "request_prompt": "def f(x):"}
    return chat(**(base | changes))


def unsupported(reason: str) -> tuple[FunnelCounter, str]:
    return FunnelCounter.UNSUPPORTED, reason


def malformed(reason: str) -> tuple[FunnelCounter, str]:
    return FunnelCounter.MALFORMED, reason


def test_a_chat_request_is_rendered_and_its_parameters_kept() -> None:
    prompt = admitted(
        chat(
            request_temperature=0.3,
            request_top_p=0.9,
            request_top_k=-1,
            request_min_p=0.05,
            request_repetition_penalty=1.1,
            request_presence_penalty=-0.5,
            request_frequency_penalty=0.25,
            request_max_tokens=7,
            request_min_tokens=2,
            request_stop="END",
            request_stop_token_ids=[5],
            request_ignore_eos=True,
            request_seed=11,
        )
    )
    assert bytes(prompt.prompt_token_ids) == b'user:Why is the sky blue?""'
    assert prompt.sampling == SamplingParameters(
        0.3, 0.9, 0, 0.05, 1.1, -0.5, 0.25, 7, 2, ("END",), (5,), True, 11
    )  # fmt: skip
    assert prompt.response is not None
    assert (prompt.response.token_ids, prompt.response.finish_reason) == ((1, 2, 3), "stop")
    assert prompt.response.num_output_tokens == 3


def test_a_completion_is_encoded() -> None:
    assert bytes(admitted(completion()).prompt_token_ids) == b"def f(x):"
    assert admitted(completion(request_prompt=["one"])).prompt_token_ids == tuple(b"one")
    assert admitted(completion(request_prompt=[4, 5])).prompt_token_ids == (4, 5)
    assert admitted(completion(request_prompt=[[4, 5]])).prompt_token_ids == (4, 5)
    assert admitted(completion(request_max_tokens=None)).sampling.max_tokens == 16  # the API's own default


def test_given_token_ids_win_over_rendering() -> None:
    for record in (
        chat(request_prompt_token_ids=[9, 8, 7]),
        chat(response_prompt_token_ids=[9, 8, 7]),
        completion(response_choices=[{"prompt_token_ids": [9, 8, 7]}]),
        chat(request_prompt_token_ids=[9, 8, 7], response_prompt_token_ids=[1]),
        chat(response_prompt_token_ids=[9, 8, 7], request_chat_template="{{ x }}", request_reasoning_effort="low"),
    ):
        assert admitted(record).prompt_token_ids == (9, 8, 7)


def test_text_parts_are_joined_and_tool_calls_become_values() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert b"user:one\ntwo" in bytes(
        admitted(chat(request_messages=[{"role": "user", "content": parts}])).prompt_token_ids
    )
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert fate(chat(request_messages=messages)) == MEASURED
    call["function"] = {"name": "f", "arguments": "{broken"}
    assert fate(chat(request_messages=messages)) == MEASURED, "servers serve it (test_chat_messages)"
    del call["function"]
    assert fate(chat(request_messages=messages)) == malformed("invalid:request.messages.tool_calls")


def test_the_servers_defaults_stand_where_the_request_is_silent() -> None:
    defaults = {"temperature": 0.6, "top_k": 20}
    silent = admitted(chat(request_temperature=None), default_sampling=defaults).sampling
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 1.0)
    assert admitted(chat(request_temperature=0.0), default_sampling=defaults).sampling.temperature == 0.0
    assert admitted(chat(request_temperature=None)).sampling.temperature == 1.0  # the API's own default
    assert admitted(chat(request_temperature=1e-7)).labels["sampling_regime"] == "greedy"


@pytest.mark.parametrize(("seed", "read"), [(-1, None), (None, None), (0, 0), (7, 7), (-2, -2), (2**32 - 1, 2**32 - 1)])
def test_a_seed_that_asks_for_none_is_none(seed: int | None, read: int | None) -> None:
    """So that each request draws by itself; any other value is a seed."""
    prompt = admitted(chat(request_seed=seed))
    assert prompt.sampling.seed == read
    another = admitted(chat(request_seed=seed), unseeded=frozenset({-1, -2, 2**32 - 1}))
    assert another.sampling.seed == (read if read in (0, 7) else None)


def test_the_output_length_is_what_request_cap_and_context_leave() -> None:
    room = 4_096 - len(admitted(chat()).prompt_token_ids)
    assert admitted(chat(request_max_tokens=None)).sampling.max_tokens == room
    assert admitted(chat(request_max_completion_tokens=9)).sampling.max_tokens == 9
    assert admitted(chat(request_max_tokens=room)).sampling.max_tokens == room
    assert admitted(chat(), max_new_tokens=5).sampling.max_tokens == 5
    assert fate(chat(request_max_tokens=room + 1)) == unsupported("longer_than_context")
    assert fate(completion(request_prompt="x" * 4_096, request_max_tokens=1)) == unsupported("longer_than_context")
    assert fate(chat(request_max_tokens=0)) == unsupported("no_output")


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (START, START), (START * 1_000, START), (START * 10**6, START), (START * 10**9, START),
        (START + 0.25, START + 0.25),
        ("2023-11-14T22:20:00Z", START), ("2023-11-14T22:20:00", START), ("2023-11-15T00:20:00+02:00", START),
    ],
)  # fmt: skip
def test_times_in_every_form(time: Any, seconds: float) -> None:
    event_time = admitted(chat(timestamp=time)).event_time
    assert event_time.timestamp() == seconds
    assert event_time.utcoffset() is not None


def test_a_record_without_time() -> None:
    assert admitted(chat(timestamp=None, response_created=START)).event_time.timestamp() == START
    assert fate(chat(timestamp=None)) == malformed("no_timestamp")
    out_of_range = (0, "1999-12-31T23:59:59Z", "2100-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00")
    for broken in ("yesterday", "", -5, 1e300, True, [START], *out_of_range):
        counter, reason = fate(chat(timestamp=broken))
        assert (counter, str(reason)[:17]) == malformed("invalid:timestamp")


def test_ids_are_found_where_mirrors_put_them() -> None:
    one = admitted(chat(session_id="abc"))
    for record in (
        chat(session_id=None, metadata={"session_id": "abc"}),
        chat(session_id=None, request_metadata={"session_id": "abc"}),
        chat(session_id=None, headers={"X-Session-Id": "abc"}),
        chat(session_id=" abc "),
    ):
        assert admitted(record).session_hash == one.session_hash
    assert admitted(chat(session_id=" ")).session_hash is None
    users = [
        chat(user="u"), chat(request_user="u"), chat(metadata={"user_id": "u"}), chat(headers={"x-user-id": "u"})
    ]  # fmt: skip
    assert len({admitted(record).user_hash for record in users} - {None}) == 1


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (chat(status=500), "failed_request"),
        (chat(status="429"), "failed_request"),
        (chat(status="failure"), "failed_request"),
        (chat(response_error={"message": "x"}), "failed_request"),
        (chat(cache_hit=True), "cache_hit"),
        (chat(cache_hit="True"), "cache_hit"),
        (chat(metadata={"cache_hit": True}), "cache_hit"),
        (chat(is_silent_experiment=True), "silent_experiment"),
        (chat(metadata={"is_silent_experiment": "true"}), "silent_experiment"),
        (chat(metadata={"truncated": True}), "truncated"),
        (chat(request_messages=[{"role": "user", "content": "a (litellm_truncated 9 chars)"}]), "truncated"),
        (completion(request_prompt="a (litellm_truncated 9 chars)"), "truncated"),
        (chat(path="/v1/embeddings"), "embeddings"),
        (chat(path=None, url="https://host/v1/embeddings?x=1"), "embeddings"),
        (chat(path=None, request_messages=None, request_input=["x"]), "embeddings"),
        (chat(path=None, request_messages=None, request_input=[1, 2]), "embeddings"),
        (chat(path=None, request_messages=None, request_input="x", request_encoding_format="float"), "embeddings"),
        (chat(path="/v1/audio/speech"), "other_call"),
        (chat(path="/v1/threads/t/messages"), "other_call"),
        (chat(path="/v1/messages/count_tokens"), "other_call"),
        (chat(request_model="model-b", response_model=None), "other_model"),
        (chat(response_model="model-b"), "other_model"),
        (chat(request_model="else", response_model=None), "no_endpoint"),
        (chat(request_n=2), "several_choices"),
        (chat(response_choices=[{}, {}]), "several_choices"),
        (chat(request_best_of=3), "several_choices"),
        (chat(request_logit_bias={"5": 1}), "logit_bias"),
        (chat(request_guided_json={}), "grammar"),
        (chat(request_structured_outputs={"regex": "x"}), "grammar"),
        (chat(request_regex="x"), "grammar"),
        (chat(request_ebnf="x"), "grammar"),
        (chat(request_guided_whitespace_pattern="x"), "grammar_option"),
        (chat(request_response_format={"type": "json_schema"}), "grammar"),
        (chat(request_response_format={"type": "json_object"}), "grammar"),
        (chat(request_tools=[{"function": {"name": "f", "strict": True}}]), "grammar"),
        (chat(request_tool_choice="required"), "forced_tool_choice"),
        (chat(request_tool_choice={"type": "function"}), "forced_tool_choice"),
        (completion(request_echo=True), "echo"),
        (completion(request_suffix="x"), "suffix"),
        (completion(request_prompt=["a", "b"]), "several_prompts"),
        (completion(request_prompt=[[1], [2]]), "several_prompts"),
        (completion(request_prompt=""), "empty_prompt"),
        (completion(request_prompt=[256]), "token_not_in_vocabulary"),
        (chat(request_stop_token_ids=[256]), "token_not_in_vocabulary"),
        (chat(request_use_beam_search=True), "beam_search"),
        (chat(request_prompt_logprobs=1), "prompt_logprobs"),
        (chat(request_chat_template="x"), "rendering_parameter:chat_template"),
        (chat(request_messages=[{"role": "refused", "content": "x"}]), "chat_template"),
        (chat(request_frobnicate=1), "unknown_parameter"),
        (chat(**{"request_" + "no such name, " * 9: 1}), "unknown_parameter"),
    ],
)
def test_what_the_loop_cannot_measure_is_unsupported(record: dict[str, Any], reason: str) -> None:
    assert fate(record) == unsupported(reason)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("image_url", "image_content"), ("input_image", "image_content"), ("input_audio", "audio_content"),
        ("video_url", "video_content"), ("file", "file_content"), ("hologram", "unknown_content"),
    ],
)  # fmt: skip
def test_parts_that_are_no_text(kind: str, reason: str) -> None:
    content = [{"type": "text", "text": "what is this?"}, {"type": kind}]
    assert fate(chat(request_messages=[{"role": "user", "content": content}])) == unsupported(reason)


def test_neutral_and_harmless_parameters_change_nothing() -> None:
    neutral = {name: values[-1] for name, (values, _) in NEUTRAL.items()}
    rendering = {name: values[-1] for name, values in RENDERING.items()}
    harmless = dict.fromkeys(HARMLESS - {"metadata", "user"}, "anything")
    record = chat(**{f"request_{name}": value for name, value in (neutral | rendering | harmless).items()})
    assert fate(record) == MEASURED
    assert admitted(record).sampling == admitted(chat()).sampling
    assert fate(chat(request_unheard_of=None) | {"request": chat()["request"] | {"unheard_of": None}}) == MEASURED


def test_true_is_not_one_and_lists_do_not_overlap() -> None:
    assert fate(chat(request_n=True)) == unsupported("several_choices")
    tables = (READ, HARMLESS, CONSTRAINING, frozenset(NEUTRAL), frozenset(RENDERING))
    assert sum(len(table) for table in tables) == len(frozenset().union(*tables))


@pytest.mark.parametrize(
    ("response_format", "schema"),
    [
        ({"type": "json_object"}, None),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}, {"type": "object"}),
    ],
)
def test_json_asked_for_without_a_mask_is_a_class_and_a_contract(response_format: Any, schema: Any) -> None:
    prompt = admitted(chat(request_response_format=response_format, metadata={"response_format_enforced": False}))
    assert set(prompt.labels) == {"prompt_class", "sampling_regime", "context_bucket"}
    assert prompt.labels["prompt_class"] == "structured"
    assert prompt.constraint is None
    assert prompt.contract == OutputContract(Contract.JSON, schema=schema)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "not_json"),
        (b"{", "not_json"),
        (b"\xff\xfe\x00", "not_json"),
        (b'{"a": NaN}', "not_json"),
        (b"[" * 100_000, "not_json"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not_json"),
        (b"[]", "not_an_object"),
        (b"3", "not_an_object"),
        (b"{}", "invalid:request"),
        (b'{"request": {"messages": [{"role": "user", "content": "\\ud800"}]}}', "invalid_unicode"),
        (chat(request_messages=[]), "invalid:request.messages"),
        (chat(request_messages=None), "invalid:request.messages"),
        (chat(request_messages=[{"role": 3}]), "invalid:request.messages.0.role"),
        (chat(request_temperature="hot"), "invalid:request.temperature"),
        (chat(request_temperature=-1), "invalid:request.temperature"),
        (chat(request_top_p=0), "invalid:request.top_p"),
        (chat(request_max_tokens=2.5), "invalid:request.max_tokens"),
        (chat(request_seed=2**70), "invalid:request.seed"),
        (chat(request_response_format="json"), "invalid:request.response_format"),
        (completion(request_prompt={"a": 1}), "invalid:request.prompt.str"),
        (completion(request_prompt=[1.5]), "invalid:request.prompt"),
        (completion(request_prompt=[-1]), "invalid:request.prompt"),
        (chat(response_choices="x"), "invalid:response.choices"),
        (chat(response_choices=[{"token_ids": [True]}]), "invalid:response.choices.0.token_ids.0"),
    ],
)
def test_what_cannot_be_read_is_malformed(record: Any, reason: str) -> None:
    assert fate(record) == malformed(reason)


def test_logprobs_are_kept_only_if_complete() -> None:
    def logprobs(**choice: Any) -> Any:
        response = admitted(chat(response_choices=[{"token_ids": [1, 2]} | choice])).response
        assert response is not None
        return response.token_logprobs

    assert logprobs(logprobs={"content": [{"logprob": -0.5}, {"logprob": -1.5}]}) == (-0.5, -1.5)
    assert logprobs(logprobs={"token_logprobs": [-0.5, -1.5]}) == (-0.5, -1.5)
    assert logprobs(logprobs={"token_logprobs": [None, -1.5]}) is None
    assert logprobs(logprobs={"content": [{"logprob": -0.5}]}) is None
    assert logprobs() is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
CANARY = "canary sentence never to be stored"
FIELDS = sorted(
    {*chat(), "endpoint", "user", "tenant", "request_id", "url", "status", "cache_hit", "metadata", "headers"}
)
REQUEST_FIELDS = sorted(
    READ | HARMLESS | CONSTRAINING | set(NEUTRAL) | set(RENDERING)
    | {"input", "instructions", "max_output_tokens", "text", "reasoning", "system", "stop_sequences", "output_config"}
)  # fmt: skip
RESPONSE_FIELDS = [
    *("id", "model", "created", "choices", "usage", "error", "prompt_token_ids", "output", "status", "type"),
    *("incomplete_details", "content", "stop_reason", "created_at"),
]


@st.composite
def broken_records(draw: st.DrawFn) -> bytes:
    """A good record with a few of its parts replaced by arbitrary JSON, and its text by a canary."""
    by_chat = chat(request_messages=[{"role": "user", "content": CANARY}])
    record = draw(st.sampled_from([by_chat, responses(CANARY), messages(CANARY)]).map(copy.deepcopy))
    for _ in range(draw(st.integers(0, 4))):
        target = draw(st.sampled_from(["", "request", "response"]))
        names = {"": FIELDS, "request": REQUEST_FIELDS, "response": RESPONSE_FIELDS}[target]
        inner = record.get(target) if target else record
        if isinstance(inner, dict):
            inner[draw(st.sampled_from(names))] = draw(JSON | st.just(CANARY))
    value = json.dumps(record).encode()
    return value[: draw(st.integers(0, len(value)))] if draw(st.integers(0, 9)) == 0 else value


@settings(max_examples=200, deadline=None)
@given(
    records=st.lists(
        broken_records() | JSON.map(lambda j: json.dumps(j).encode()) | st.binary(max_size=60), max_size=8
    ),
    takes_constraints=st.booleans(),
)
def test_any_input_lands_in_one_counter_and_leaks_no_text(records: list[bytes], takes_constraints: bool) -> None:
    decided = fates(records, replace(RULE, takes_constraints=takes_constraints))
    assert len(decided) == len(records)
    for fate_of_one in decided:
        stored = fate_of_one.record
        assert isinstance(stored.counter, FunnelCounter)
        assert (stored.counter is FunnelCounter.MEASURED) == isinstance(fate_of_one, Admitted)
        assert (stored.reason is None) == (stored.counter is FunnelCounter.MEASURED)
        assert "canary" not in repr(stored)
        assert "canary" not in repr(fate_of_one)


@pytest.mark.parametrize(
    ("changes", "served"),
    [
        ({"response_usage": {"prompt_tokens": 25}}, 25),
        ({"response_usage": {"prompt_tokens": 0}}, None),
        ({"response_usage": {"prompt_tokens": "25"}}, None),
        ({"response_usage": None}, None),
        ({"response_usage": {"prompt_tokens": 3}, "request_prompt_token_ids": [1, 2, 3]}, None),
        ({"response_usage": {"prompt_tokens": 3}, "response_prompt_token_ids": [1, 2, 3]}, None),
        ({"response_choices": [], "response_usage": {"prompt_tokens": 25}}, 25),
    ],
)
def test_production_s_count_of_a_prompt_that_is_rendered_here_is_stored(changes: Any, served: int | None) -> None:
    (decided,) = fates([chat(**changes)], first_only(RULE))
    assert (decided.record.counter, decided.record.num_served_tokens) == (FunnelCounter.MEASURED, served)


def test_messages_count_the_tokens_of_their_cache_apart() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 11, "output_tokens": 1}
    assert convert_or_refuse({"usage": usage}, ResponseBody).usage.num_prompt_tokens == 23  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("details", "cached"),
    [({"cached_tokens": 12}, 12), ({"cached_tokens": 0}, 0), ({"cached_tokens": -1}, None),
     ({"cached_tokens": True}, None), ({"cached_tokens": 1.0}, None), ({"audio_tokens": 0}, None), (None, None),
     ("12", None)],
)  # fmt: skip
def test_production_s_cached_prompt_tokens_are_stored_and_what_makes_no_sense_is_unknown(
    details: Any, cached: int | None
) -> None:
    usage = {"completion_tokens": 3, "prompt_tokens_details": details}
    (decided,) = fates([chat(response_usage=usage)], first_only(RULE))
    assert (decided.record.counter, decided.record.num_cached_tokens) == (FunnelCounter.MEASURED, cached)
