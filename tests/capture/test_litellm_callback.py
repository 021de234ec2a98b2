"""The callback copies what LiteLLM logs, with the parameters that it leaves out."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from typing import Any

import pytest

from shadowspec.servers.client import run_async
from shadowspec.tap.openai import parse_request
from tests.capture.outlets import KeptOutlet, until
from tests.tap.formats.samples import record_of

NOW = datetime.now(UTC)
PAYLOAD = {
    "call_type": "acompletion",
    "startTime": 1_790_000_000.5,
    "model_map_information": {"prices": 1},
    "messages": [{"role": "user", "content": "Why?"}],
    "model_parameters": {"temperature": 0.5},
    "metadata": {"requester_metadata": {"session_id": "s-1"}},
    "response": {"odd": NOW},
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS", "localhost:1")
    monkeypatch.setenv("SHADOWSPEC_CAPTURE_TOPIC", "shadow.prompts")
    yield importlib.import_module("shadowspec.capture.litellm_callback")
    sys.modules.pop("shadowspec.capture.litellm_callback")


def test_a_call_is_copied_with_all_its_parameters(module: Any) -> None:
    outlet = KeptOutlet()
    received = {"body": {"top_k": 3, "temperature": 0.1, "other": 1}}
    given = {"standard_logging_object": PAYLOAD, "litellm_params": {"proxy_server_request": received}}
    run_async(module.Mirror(outlet).async_log_success_event(given, None, NOW, NOW))
    until(lambda: outlet.counts.sent == 1 and outlet.held_bytes == 0)
    (message,) = outlet.messages
    assert message.key == b"s-1"
    assert b"prices" not in (message.value or b"")
    sampling = parse_request(record_of(message.value)).sampling
    assert (sampling.temperature, sampling.top_k) == (0.5, 3)
    assert "model_map_information" in PAYLOAD
    assert isinstance(module.mirror, module.Mirror)
