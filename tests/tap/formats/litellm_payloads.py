"""Makes real LiteLLM logging payloads: `python litellm_payloads.py OUT` writes one JSON object, payload by name.

It runs as a process of its own: importing litellm takes seconds, starts threads and warns.  Every answer is
mocked by litellm itself, so nothing is sent anywhere.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a price list on import

import litellm
from litellm.constants import (
    LITELLM_TRUNCATED_PAYLOAD_FIELD,
    LITELLM_TRUNCATION_DB_SAFEGUARD_NOTE,
    MAX_STRING_LENGTH_PROMPT_IN_DB,
)
from litellm.integrations.custom_guardrail import CustomGuardrail
from litellm.integrations.custom_logger import CustomLogger
from litellm.litellm_core_utils.litellm_logging import Logging, get_standard_logging_object_payload
from litellm.litellm_core_utils.redact_messages import redacted_standard_logging_payload
from litellm.litellm_core_utils.safe_json_dumps import safe_dumps
from litellm.types.guardrails import GuardrailEventHooks

MODEL = "hosted_vllm/model-a"
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
ANSWER = "Because air scatters blue light."
LONG_PROMPT = "A long story. " * 1_000
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
MAX_STORED = MAX_STRING_LENGTH_PROMPT_IN_DB  # characters
HOOKS = GuardrailEventHooks
SECONDS_TO_LOG = 20  # the callbacks run in a thread of litellm's


class Recorder(CustomLogger):
    """Keeps the payload of the last call, as any of litellm's own integrations is given it."""

    def __init__(self) -> None:
        super().__init__()
        self.payload: Any = None
        self.success: tuple[Any, ...] = ()
        self.arrived = threading.Event()

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self.success = (dict(kwargs), response_obj, start_time, end_time)
        self._keep(kwargs)

    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        self._keep(kwargs)

    def _keep(self, kwargs: Any) -> None:
        if kwargs.get("standard_logging_object") is not None:
            self.payload = kwargs["standard_logging_object"]
            self.arrived.set()


def payload_of(recorder: Recorder, call: Callable[[], Any]) -> dict[str, Any]:
    """What the call logged, as it comes out of litellm's own serialisation."""
    recorder.arrived.clear()
    call()
    if not recorder.arrived.wait(SECONDS_TO_LOG):
        raise SystemExit("litellm logged nothing")
    return json.loads(safe_dumps(recorder.payload))  # type: ignore[no-any-return]


def chat(**options: Any) -> Any:
    return litellm.completion(**{"model": MODEL, "messages": MESSAGES, "mock_response": ANSWER, **options})


def failing(**options: Any) -> None:
    try:
        chat(mock_response=litellm.InternalServerError("down", llm_provider="hosted_vllm", model="model-a"), **options)
    except litellm.InternalServerError:
        return
    raise SystemExit("the mocked failure did not fail")


def guarded(mode: Any, status: Any = "guardrail_intervened", masked: dict[str, int] | None = None) -> dict[str, Any]:
    """The options of a call that a guardrail has looked at, as litellm's own base class notes it."""
    data: dict[str, Any] = {"metadata": {}}
    CustomGuardrail(guardrail_name="guard", event_hook=mode).add_standard_logging_guardrail_information_to_request_data(
        guardrail_json_response={"action": "seen"},
        request_data=data,
        guardrail_status=status,
        masked_entity_count=masked,
    )
    return data


def routed() -> Any:
    deployment = {"model": MODEL, "api_base": "http://model.invalid/v1", "api_key": "none", "mock_response": ANSWER}
    router = litellm.Router(model_list=[{"model_name": "public-chat", "litellm_params": deployment}])
    return router.completion(model="public-chat", messages=MESSAGES, max_tokens=20)


def from_cache(recorder: Recorder) -> dict[str, Any]:
    """The last call as it would be logged if its answer had come from the cache (which needs the whole proxy)."""
    kwargs, response, start, end = recorder.success
    log = Logging(MODEL, MESSAGES, False, "completion", start, "call-1", "function-1")
    payload = get_standard_logging_object_payload({**kwargs, "cache_hit": True}, response, start, end, log, "success")
    return json.loads(safe_dumps(payload))  # type: ignore[no-any-return]


def main() -> None:
    recorder = Recorder()
    litellm.callbacks = [recorder]
    calls: dict[str, Callable[[], Any]] = {
        "chat": lambda: chat(
            temperature=0.8,
            max_tokens=20,
            seed=3,
            stop=["\n\n"],
            user="user-1",
            litellm_session_id="session-1",
            metadata={
                "spend_logs_metadata": {"tier": "pro"},
                "requester_metadata": {"prompt_class": "chat", "session_id": "session-2"},
                "user_api_key_team_id": "team-1",
                "user_api_key_end_user_id": "end-user-1",
            },
        ),
        "plain": chat,
        "streamed": lambda: list(chat(stream=True, stream_options={"include_usage": True})),
        "tools": lambda: chat(tools=[TOOL], tool_choice="auto", _skip_mcp_handler=True),  # that needs more packages
        "several": lambda: chat(n=2),
        "extras": lambda: chat(extra_body={"top_k": 5, "min_p": 0.1}, top_k=7, drop_params=True),
        "long": lambda: chat(messages=[{"role": "user", "content": LONG_PROMPT}]),
        "image": lambda: chat(
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is this?"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 300}},
                    ],
                }
            ]
        ),
        "failed": failing,
        "text": lambda: litellm.text_completion(
            model="text-completion-openai/model-a", prompt="Once upon", mock_response=ANSWER, max_tokens=5
        ),
        "embedding": lambda: litellm.embedding(
            model="openai/model-a", input=["Once upon"], mock_response=[0.1, 0.2], api_key="none"
        ),
        "pictures": lambda: litellm.image_generation(
            model="openai/model-a", prompt="A house", mock_response="http://x.invalid/1.png", api_key="none"
        ),
        "routed": routed,
        "rewritten": lambda: chat(**guarded(HOOKS.post_call)),
        "masked": lambda: chat(**guarded(HOOKS.post_call, "success", {"PHONE": 1})),
        "looked_at": lambda: chat(**guarded(HOOKS.post_call, "success", {"PHONE": 0})),
        "prompt_masked": lambda: chat(**guarded(HOOKS.pre_call, masked={"PHONE": 1})),
        "on_both_sides": lambda: chat(**guarded([HOOKS.pre_call, HOOKS.post_call])),
        "rejected": lambda: failing(**guarded(HOOKS.post_call)),
        "prompt_rejected": lambda: failing(**guarded(HOOKS.pre_call)),
    }
    payloads = {name: payload_of(recorder, call) for name, call in calls.items()}
    payloads["cached"] = from_cache(recorder)
    litellm.request_correlation_in_logs = True
    payloads["correlated"] = payload_of(recorder, lambda: chat(litellm_session_id="session-3"))
    litellm.turn_off_message_logging = True
    payloads["redacted"] = payload_of(recorder, chat)
    payloads["redacted_later"] = json.loads(safe_dumps(redacted_standard_logging_payload(payloads["chat"])))
    # What its loggers do to long prompts: the database's (its code needs the whole proxy, so only its words are
    # litellm's own here) and Datadog's.
    cut = f"{LONG_PROMPT[:700]}... ({LITELLM_TRUNCATED_PAYLOAD_FIELD} skipped {len(LONG_PROMPT) - MAX_STORED} chars. "
    cut += f"{LITELLM_TRUNCATION_DB_SAFEGUARD_NOTE}) ...{LONG_PROMPT[700 - MAX_STORED :]}"
    payloads["cut_in_the_middle"] = {**payloads["long"], "messages": [{"role": "user", "content": cut}]}
    payloads["cut_at_the_end"] = dict(Recorder().truncate_standard_logging_payload_content(payloads["long"]))
    Path(sys.argv[1]).write_text(json.dumps(payloads))


if __name__ == "__main__":
    main()
