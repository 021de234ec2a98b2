"""LiteLLM hook: tag each request with its slice and endpoint, which `shadowspec classify --listen` names.

CLASSIFIER_URL is the classifier's address.  Where it does not answer within CLASSIFIER_TIMEOUT_S, the request has no
tag and goes to the plain pool.
"""

import json
import logging
import os
from typing import Any
from urllib.parse import urlsplit

import httpx
from litellm.integrations.custom_logger import CustomLogger

TIMEOUT_S = float(os.environ.get("CLASSIFIER_TIMEOUT_S", "0.1"))
log = logging.getLogger(__name__)


class Routes(CustomLogger):
    """Replaces the tags of the client, so that no client chooses its pool."""

    def __init__(self) -> None:
        super().__init__()
        self.client = httpx.AsyncClient(
            base_url=os.environ.get("CLASSIFIER_URL", "http://127.0.0.1:9300"), timeout=TIMEOUT_S
        )

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any]:
        """Ask for the slice; LiteLLM runs this before it chooses a deployment."""
        received = data.get("proxy_server_request") or {}
        path = urlsplit(str(received.get("url") or "/")).path
        headers = {name: value for name, value in (received.get("headers") or {}).items() if name.startswith("x-")}
        metadata = data.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        # LiteLLM adds keys to the body and objects to its metadata; the client's metadata is kept beside them.
        body = {name: value for name, value in (received.get("body") or {}).items() if not name.startswith("litellm_")}
        body["metadata"] = metadata.get("requester_metadata")
        content = json.dumps({name: value for name, value in body.items() if value is not None}, default=str)
        tags = ""
        try:
            answer = await self.client.post(path, content=content, headers=headers)
            tags = answer.headers.get("x-litellm-tags", "")
            log.debug("tags: %s; reason: %s", tags, answer.headers.get("x-shadowspec-reason"))
        except httpx.HTTPError as error:
            log.warning("the classifier did not answer: %s", type(error).__name__)
        data["metadata"] = {**metadata, "tags": tags.split(",") if tags else []}
        return data


routes = Routes()
