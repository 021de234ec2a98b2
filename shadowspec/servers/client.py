"""One server, spoken to: a client that contacts its host and no other, gives up in time, and never counts twice.

A request is sent again only whole, and no token of a failed attempt is retained.  Its time is: a client would have
waited for it and for the pause after it, so that both are in the time to the first token.  A request is sent again
where it was refused for now (429, 503, no connection), where the server failed (5xx) and where its answer was cut off;
not where time ran out, which a second try would hide, and not where the answer makes no sense.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx

from shadowspec.errors import ConfigError
from shadowspec.servers.engines import ServingEngine, engine_of
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import MAX_RETRY_WAIT_S, ServerSettings, Waits
from shadowspec.servers.stream import Completion, ServerError, StreamedAnswer, events
from shadowspec.types.server_sent_events import DONE

FIRST_RETRY_S: Final = 0.5  # doubled with every attempt, where the server does not say how long to wait
LOOK_S: Final = 10.0  # that a look at a server (its models, its counters) may take
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024  # not streamed: 20 tokens at each of 100,000 places take 150 MiB
END_S: Final = 1.0  # that a whole answer's connection may take to end
CHAT_PATH: Final = "v1/chat/completions"  # of every engine
Answer = TypeVar("Answer")
Result = TypeVar("Result")
_AGAIN: Final = frozenset({429, 500, 502, 503, 504})


class ServerClient:
    """A client of one server while `open_client` lasts."""

    def __init__(
        self,
        name: str,
        http: httpx.AsyncClient,
        model: str,
        waits: Waits,
        max_attempts: int,
        engine: ServingEngine | None = None,
    ) -> None:
        """
        Args:
            name: of the server, for messages: its arm and host.
            engine: whose API it speaks; None: not known yet.
        """
        self.name, self.engine = name, engine or engine_of("")
        self.served_models: Collection[str] = ()  # the names that it lists, adapters' among them; (): not looked at
        self._http, self._model, self._waits, self._max_attempts = http, model, waits, max_attempts

    async def look(self, path: str) -> str | None:
        """The text at a path of the server; None where it has none (404).

        Raises:
            ServerError: it cannot be reached, answers with an error, or points elsewhere.
        """
        try:
            async with asyncio.timeout(LOOK_S):
                try:
                    response = await self._http.get(path)
                except (httpx.ReadError, httpx.RemoteProtocolError):  # it closed an idle connection just then
                    response = await self._http.get(path)
        except (TimeoutError, httpx.HTTPError) as error:
            raise unreachable_error(self.name, error, "unreachable") from error
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        check_status(self.name, response)
        return response.text

    async def complete(self, request: ServerRequest, salt: str, *, is_turn: bool = False) -> Completion:
        """The answer to a request, after as many attempts as are needed and allowed.

        Each attempt has its salt; all attempts of a turn share one, so that the turn finds the earlier turns, and later
        turns find it.

        Raises:
            ServerError: no answer; the last attempt's reason.
        """
        began = time.perf_counter()
        completion, attempt = await self._retry(
            lambda attempt: self._attempt(request, salt if is_turn else f"{salt}-{attempt}")
        )
        waited_s = completion.sent_s - began if attempt > 1 else 0.0
        return replace(completion, num_attempts=attempt, waited_s=waited_s)

    async def prompt_logprobs(self, token_ids: Sequence[int], start: int, number: int, salt: str) -> list[Any]:
        """Log probabilities by token, place by place from `start` on: of the `number` likeliest and the prompt's token.

        None for a place of which the server returns none.

        Raises:
            ServerError: no usable answer; the last attempt's reason.
        """

        logprobs: list[Any] = []
        for places in self.engine.scored_together(len(token_ids), start):
            token_ids_so_far, first = token_ids[: places.stop], places.start

            def ask(
                attempt: int, ids: Sequence[int] = token_ids_so_far, first: int = first
            ) -> Awaitable[Mapping[str, Any]]:
                return self._ask(self.engine.scoring_body_of(ids, first, number, self._model, f"{salt}-{attempt}"))

            answer, _ = await self._retry(ask)
            logprobs += self.engine.prompt_logprobs_of(answer, token_ids_so_far, first)
        return logprobs

    def speaking_to(self, engine: ServingEngine) -> ServerClient:
        """The same client, of an engine that is known."""
        client = ServerClient(self.name, self._http, self._model, self._waits, self._max_attempts, engine)
        client.served_models = self.served_models
        return client

    async def _retry(self, attempted: Callable[[int], Awaitable[Answer]]) -> tuple[Answer, int]:
        """The first answer, and which attempt gave it."""
        for attempt in range(1, self._max_attempts + 1):
            try:
                return await attempted(attempt), attempt
            except ServerError as fault:
                wait_s = FIRST_RETRY_S * 2.0 ** (attempt - 1) if fault.retry_after_s is None else fault.retry_after_s
                if not fault.is_retryable or attempt == self._max_attempts or wait_s > MAX_RETRY_WAIT_S:
                    raise
            await asyncio.sleep(wait_s)
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """One attempt at an answer that is not streamed; an oversized answer is not read to its end."""
        content = bytearray()
        try:
            async with asyncio.timeout(self._waits.total_s):
                async with self._http.stream(
                    "POST", self.engine.path, json=body, headers=self.engine.headers
                ) as response:
                    check_status(self.name, response)
                    async for part in response.aiter_bytes():
                        content += part
                        if len(content) > MAX_ANSWER_BYTES:
                            raise ServerError(self.name, "garbage", "an answer exceeds the size limit")
        except TimeoutError as error:
            raise ServerError(
                self.name, "total_timeout", f"no whole answer within {self._waits.total_s:g} s"
            ) from error
        except httpx.HTTPError as error:
            raise unreachable_error(self.name, error, "cut_off" if content else "unreachable") from error
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ServerError(self.name, "garbage", "an answer is not JSON") from error
        if not isinstance(answer, dict):
            raise ServerError(self.name, "garbage", "an answer is not an object")
        if (model := answer.get("model")) is not None and model != self._model:
            raise ServerError(self.name, "other_model", "another model answered than was asked for")
        return answer

    async def _attempt(self, request: ServerRequest, salt: str) -> Completion:
        """One attempt.  Only tokens extend its time-out, not other events."""
        waits, loop = self._waits, asyncio.get_running_loop()
        answer_type: type[StreamedAnswer]
        if request.chat is not None:
            path, answer_type = CHAT_PATH, self.engine.chat_answer_type
            body = self.engine.chat_body_of(request, self.served_models, self._model, salt)
        elif (name := self.engine.lacking(request)) is not None:
            raise ServerError(self.name, f"unsupported_{name}", f"its engine has no {name}, or means it otherwise")
        else:
            path, answer_type = self.engine.path, self.engine.answer_type
            body = self.engine.body_of(request, self._model, salt)
        sent_s = time.perf_counter()
        end = loop.time() + waits.total_s
        answer = answer_type(self.name, str(body["model"]) if "model" in body else self._model, request, sent_s)
        try:
            async with asyncio.timeout_at(min(end, loop.time() + waits.first_token_s)) as clock:
                async with self._http.stream("POST", path, json=body, headers=self.engine.headers) as response:
                    check_status(self.name, response)
                    received = events(self.name, response.aiter_bytes())
                    async for data in received:
                        if data == DONE:
                            break
                        if answer.take(data, time.perf_counter()):
                            clock.reschedule(min(end, loop.time() + waits.token_s))
                    completion = answer.completion()
                    await _drain(received)
                return completion
        except TimeoutError as error:
            if loop.time() >= end:
                raise ServerError(self.name, "total_timeout", f"no whole answer within {waits.total_s:g} s") from error
            if answer.has_first_token:
                raise ServerError(self.name, "token_timeout", f"no further token within {waits.token_s:g} s") from error
            raise ServerError(self.name, "first_token_timeout", f"no token within {waits.first_token_s:g} s") from error
        except httpx.HTTPError as error:
            raise unreachable_error(self.name, error, "cut_off" if answer.has_first_token else "unreachable") from error


def check_status(name: str, response: httpx.Response) -> None:
    """Raise the error of a server that points elsewhere, or answers with an error."""
    status = response.status_code
    if response.is_redirect:
        host = urlsplit(response.headers.get("location", "")).hostname or "no host"
        raise ServerError(
            name, "redirected", f"it points to {host}; redirects are not followed: name the server itself"
        )
    if not response.is_success:
        raise ServerError(
            name,
            f"http_{status}",
            f"it answered with HTTP {status}{status_hint(status)}",
            is_retryable=status in _AGAIN,
            retry_after_s=_retry_after(response.headers.get("retry-after")),
        )


def unreachable_error(name: str, error: Exception, code: str) -> ServerError:
    """Names only the class of an error: its message may name more than the host."""
    word = "the answer was cut off" if code == "cut_off" else "it cannot be reached"
    remedy = "" if code == "cut_off" else "; start it, or correct its URL"
    return ServerError(name, code, f"{word} ({type(error).__name__}){remedy}", is_retryable=True)


async def _drain(received: AsyncIterator[str]) -> None:
    """Read the rest of the stream: a connection can serve the next request only after a complete answer."""
    try:
        async with asyncio.timeout(END_S):
            async for _ in received:
                pass
    except (TimeoutError, httpx.HTTPError, ServerError):
        return  # the answer was whole; the connection is not used again


def status_hint(status: int) -> str:
    """The likely meaning of an HTTP status, to follow it in a message; "" where the status suffices."""
    return {
        401: ": is the key right, and its variable set?",
        403: ": may this key ask?",
        404: ": is this its root?",
    }.get(status, "")


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date; None for any other value."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def fresh_salt() -> str:
    """A new salt each time: a repeated request must not find its prompt in a server's cache."""
    return secrets.token_hex(16)


def server_name(arm: str, url: str) -> str:
    """A server as messages name it: its arm, host and port."""
    parts = urlsplit(url)
    return f"{arm} server {parts.hostname}" + (f":{parts.port}" if parts.port else "")


def trust(ca_file: Path | None) -> ssl.SSLContext:
    """Certificates are always verified, against this file or the system's authorities.

    Raises:
        ConfigError: the file cannot be read or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca_file: {ca_file}: no certificate can be read of it") from error


def authorization(settings: ServerSettings, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The servers' authorization header, from the environment; {} where they need none.

    Raises:
        ConfigError: the variable is not set.
    """
    return bearer(settings.api_key_variable, environment)


def bearer(variable: str | None, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The header with the key in this variable; {} without a variable.

    Raises:
        ConfigError: the variable is not set.
    """
    if variable is None:
        return {}
    key = (os.environ if environment is None else environment).get(variable)
    if not key:
        raise ConfigError(f"api_key_variable: {variable} is not set")
    return {"Authorization": f"Bearer {key}"}


def quiet_http_logs() -> None:
    """Keep the HTTP libraries from logging every request, and where a redirect points with its query."""
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


@asynccontextmanager
async def open_client(
    arm: str, url: str, settings: ServerSettings, context: ssl.SSLContext, connections: int
) -> AsyncIterator[ServerClient]:
    """A client of one server with at most this number of connections; it uses no proxy of the environment."""
    quiet_http_logs()
    headers: dict[str, Any] = {"Accept-Encoding": "identity", **authorization(settings)}
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=None)
    async with httpx.AsyncClient(
        base_url=url,
        headers=headers,
        verify=context,
        trust_env=False,
        follow_redirects=False,
        limits=limits,
        timeout=httpx.Timeout(None, connect=settings.waits.connect_s),
    ) as http:
        yield ServerClient(server_name(arm, url), http, settings.model, settings.waits, settings.max_attempts)


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work, in a separate event loop: in a notebook or beside a driven browser, on another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
