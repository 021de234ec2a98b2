"""LiteLLM callback: append each successful call to a file that ShadowSpec reads (format `litellm`).

MIRROR_FILE names the file; `{pid}` in it becomes the process id, because each worker of the proxy writes its own file.
"""

import json
import os
from datetime import datetime
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

# Fields of a request that `model_parameters` lacks, although they change what is generated.
PASSED_ON = (
    "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos", "chat_template_kwargs",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip


class Mirror(CustomLogger):
    """Writes one `StandardLoggingPayload` a line."""

    def __init__(self) -> None:
        super().__init__()
        path = os.environ.get("MIRROR_FILE", "traffic-{pid}.jsonl").format(pid=os.getpid())
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.file = os.fdopen(descriptor, "a", encoding="utf-8", buffering=1)

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: datetime, end_time: datetime
    ) -> None:
        """Write the call; LiteLLM runs this after it has answered the client."""
        payload = dict(kwargs["standard_logging_object"])
        received = (kwargs.get("litellm_params") or {}).get("proxy_server_request") or {}
        body = received.get("body") or {}
        missing = {name: body[name] for name in PASSED_ON if name in body}
        payload["model_parameters"] = {**missing, **(payload.get("model_parameters") or {})}
        self.file.write(json.dumps(payload, default=str) + "\n")


mirror = Mirror()
