"""A callback of LiteLLM's proxy that copies each successful call (format `litellm`).

    litellm_settings:
      callbacks: [shadowspec.capture.litellm_callback.mirror]
      request_correlation_in_logs: true

LiteLLM runs it after it has answered the client.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from litellm.integrations.custom_logger import CustomLogger

from shadowspec.capture.outlet import Outlet
from shadowspec.tap.kafka.arrivals import arrival
from shadowspec.tap.kafka.producer import OutgoingMessage
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey

# Fields of a request that `model_parameters` lacks, although they change what is generated.
PASSED_ON: Final = (
    "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "chat_template_kwargs",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip
OF_PRICES: Final = "model_map_information"  # several kilobytes that say nothing of the call
NO_PLACE: Final = RecordKey("litellm", 0, 0)


class Mirror(CustomLogger):
    """Copies one `StandardLoggingPayload` a call."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self.outlet = outlet

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        """Copy the call."""
        payload = dict(kwargs["standard_logging_object"])
        received = (kwargs.get("litellm_params") or {}).get("proxy_server_request") or {}
        body = received.get("body") or {}
        missing = {name: body[name] for name in PASSED_ON if name in body}
        payload["model_parameters"] = {**missing, **(payload.get("model_parameters") or {})}
        payload.pop(OF_PRICES, None)
        value = json.dumps(payload, default=str).encode()
        self.outlet.offer(len(value), lambda: _message(value))


def _message(value: bytes) -> OutgoingMessage:
    return arrival(RawRecord(NO_PLACE, value)).message


mirror = Mirror(Outlet.from_environment())  # the proxy imports this module by this name alone, and needs an instance
