"""The tokenizer of a server, asked over HTTP: for a target whose folder is not at hand.

A request is sent for every prompt, so it serves where nothing is timed meanwhile.

In: the settings of an endpoint's servers, texts and chats.  Out: token ids, as the server makes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from shadowspec.errors import ModelError, RecordError
from shadowspec.servers.client import (
    authorization,
    check_status,
    open_client,
    quiet_http_logs,
    run_async,
    server_name,
    trust,
    unreachable_error,
)
from shadowspec.servers.engines import ServerIdentity, ServingEngine, engine_of
from shadowspec.servers.identity import identify
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.stream import ServerError
from shadowspec.types import Arm, FunnelCounter
from shadowspec.types.prompt_rules import TemplateTraits

ANSWER_S: Final = 60.0  # a long prompt takes a second
ANY_LENGTH: Final = 2**31  # tokens: no vocabulary is larger, and no context
REFUSED: Final = (400, 413, 422, 500)  # what servers answer to a chat that their template refuses
TINY_CHAT: Final = {"messages": [{"role": "user", "content": "a"}]}


class ServedTokenizer:
    """The tokenizer of an endpoint's plain server, as the tap needs it; `close` ends its connection."""

    vocabulary_size = ANY_LENGTH  # the ids are the server's own

    def __init__(self, settings: ServerSettings, identity: ServerIdentity) -> None:
        """`identity` is the plain server's."""
        lengths = (identity.max_model_len, settings.max_model_len)
        self.context_length = min((length for length in lengths if length is not None), default=ANY_LENGTH)
        self._engine: ServingEngine = engine_of(identity.engine, identity.version)
        self._model, self._name = settings.model, server_name(Arm.BASELINE, settings.baseline_url)
        quiet_http_logs()
        self._http = httpx.Client(
            base_url=settings.baseline_url,
            headers={"Accept-Encoding": "identity", **authorization(settings)},
            verify=trust(settings.ca_file),
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(ANSWER_S, connect=settings.waits.connect_s),
        )

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def traits_of(self, tools: Sequence[Mapping[str, Any]] | None) -> TemplateTraits:
        """None are needed: the server makes of messages what its template wants."""
        return TemplateTraits()

    def render_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Token ids of a conversation with the assistant's turn opened.

        Raises:
            RecordError: the server refuses the messages.
            ServerError: it gives no usable answer.
        """
        body = {"messages": [dict(message) for message in messages]}
        return self.render_body(body | ({"tools": [dict(tool) for tool in tools]} if tools else {}))

    def render_body(self, body: Mapping[str, Any]) -> list[int]:
        """The same of a client's whole body, with all that its template reads of it."""
        try:
            ids = self._engine.chat_ids(self._ask, body, self._model)
        except ServerError as error:
            if error.code not in {f"http_{status}" for status in REFUSED}:
                raise
            # The server's answer may quote the prompt, so it is dropped.
            raise RecordError(
                FunnelCounter.UNSUPPORTED, "chat_template_refused", "the server refused to render the messages"
            ) from None
        return self._given(ids)

    def encode(self, text: str) -> list[int]:
        """Token ids of a completion prompt, special tokens included.

        Raises:
            ServerError: the server gives no usable answer.
        """
        return self._given(self._engine.text_ids(self._ask, text, self._model))

    def _given(self, ids: Sequence[int] | None) -> list[int]:
        if ids is None or not all(type(token_id) is int for token_id in ids):
            raise ServerError(self._name, "garbage", "it lists no tokens of a prompt")
        return list(ids)

    def require(self, identity: ServerIdentity, *, is_chat: bool) -> None:
        """Refuse a server that does not say which tokens it makes of a text, or where `is_chat` of a chat.

        Raises:
            ModelError: as said.
        """
        asked = {"a text": self._engine.text_ids(self._ask, "a", self._model)}
        if is_chat:
            try:
                asked["a chat"] = self._engine.chat_ids(self._ask, TINY_CHAT, self._model)
            except ServerError as error:  # it may have no template, and each chat is refused then
                if error.code not in {f"http_{status}" for status in REFUSED}:
                    raise
        if lacking := [what for what, ids in asked.items() if ids is None]:
            raise ModelError(
                f"{self._name}: {identity.name} does not say which tokens it makes of {' and '.join(lacking)}; give "
                "the folder of its tokenizer: --target DIR, or `target` of the endpoint"
            )

    def _ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to a body at a path; None where the server has no such path."""
        try:
            try:
                response = self._http.post(path, json=body, headers=self._engine.headers)
            except (httpx.ReadError, httpx.RemoteProtocolError):  # it closed an idle connection just then
                response = self._http.post(path, json=body, headers=self._engine.headers)
        except httpx.HTTPError as error:
            raise unreachable_error(self._name, error, "unreachable") from error
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        check_status(self._name, response)
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError) as error:
            raise ServerError(self._name, "garbage", f"/{path} answers with no JSON") from error
        if not isinstance(answer, dict):
            raise ServerError(self._name, "garbage", f"/{path} answers with no object")
        return answer


def connect_tokenizer(settings: ServerSettings) -> ServedTokenizer:
    """The tokenizer of an endpoint's plain server, which is looked at first.

    Raises:
        ServerError: it cannot be reached, does not serve the model, or gives no usable answer.
        ModelError: it does not say which tokens it makes of a prompt.
        ConfigError: the key's variable is not set, or the file of certificates cannot be read.
    """

    async def look() -> ServerIdentity:
        server = settings.baseline
        async with open_client(server.label, server.url, settings, trust(settings.ca_file), 1) as client:
            return await identify(client, settings.model)

    identity = run_async(look())
    tokenizer = ServedTokenizer(settings, identity)
    try:
        tokenizer.require(identity, is_chat=settings.api == "chat")
    except BaseException:
        tokenizer.close()
        raise
    return tokenizer
