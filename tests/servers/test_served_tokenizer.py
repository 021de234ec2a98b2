"""Token ids that a server is asked for: as each engine says them, with what each does not say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from shadowspec.errors import ModelError, RecordError
from shadowspec.servers.served_tokenizer import ServedTokenizer, connect_tokenizer
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.stream import ServerError
from shadowspec.tap.reading import BodyRenderer
from tests.servers.fake_llamacpp import FakeLlamaCpp
from tests.servers.fake_server import FakeServer, rendered, running, tokens_of
from tests.servers.fake_sglang import FakeSglang
from tests.servers.fake_tensorrt_llm import FakeTensorRtLlm

ENGINES = (FakeServer, FakeSglang, FakeLlamaCpp)
CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}], "tools": [{"a": 1}]}
SENT = {**CHAT, "model": "x", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 9}


@contextmanager
def tokenizer_of(server: FakeServer, **changes: Any) -> Iterator[ServedTokenizer]:
    with running(server):
        settings = ServerSettings(server.url, "m", "cpu", "float32", server.url, **changes)
        with closing(connect_tokenizer(settings)) as tokenizer:
            yield tokenizer


@pytest.mark.parametrize("engine", ENGINES)
def test_the_ids_are_those_that_the_server_makes_of_texts_and_chats(engine: Callable[..., FakeServer]) -> None:
    with tokenizer_of(engine()) as tokenizer:
        assert tokenizer.encode("a text") == tokens_of("a text")
        assert tokenizer.render_body(SENT) == rendered(CHAT)
        assert tokenizer.render_chat(CHAT["messages"], None) == rendered({"messages": CHAT["messages"]})
        assert isinstance(tokenizer, BodyRenderer)
        assert tokenizer.context_length == 1024
    with tokenizer_of(engine(), max_model_len=512) as tokenizer:
        assert tokenizer.context_length == 512


@pytest.mark.parametrize("engine", ENGINES)
def test_a_chat_that_the_template_refuses_ends_its_record_and_is_not_quoted(engine: Callable[..., FakeServer]) -> None:
    with tokenizer_of(engine(refuses_chats=True)) as tokenizer:
        with pytest.raises(RecordError, match="the server refused to render the messages") as refused:
            tokenizer.render_body(SENT)
        assert (refused.value.reason, refused.value.__cause__) == ("chat_template_refused", None)
        assert tokenizer.encode("a") == tokens_of("a")


@pytest.mark.parametrize("engine", [*ENGINES, FakeTensorRtLlm])
def test_a_server_that_says_no_tokens_is_refused_with_the_remedy(engine: Callable[..., FakeServer]) -> None:
    said = "does not say which tokens it makes of a text and a chat; give the folder of its tokenizer: --target DIR"
    with pytest.raises(ModelError, match=said), tokenizer_of(engine(tells_tokens=False)):
        pass


def test_an_earlier_sglang_renders_no_chat_but_texts_are_enough_for_completions() -> None:
    class Earlier(FakeSglang):
        async def _complete(self, body: dict[str, Any], writer: Any) -> None:
            await super()._complete({name: body[name] for name in body if name != "return_prompt_token_ids"}, writer)

    with pytest.raises(ModelError, match="makes of a chat; give"), tokenizer_of(Earlier()):
        pass
    with tokenizer_of(Earlier(), api="completions") as tokenizer:
        assert tokenizer.encode("ab") == tokens_of("ab")


def test_a_server_that_is_away_or_answers_nonsense_is_named() -> None:
    server = FakeServer()
    with tokenizer_of(server) as tokenizer:
        server.key = "another"
        with pytest.raises(ServerError, match=r"baseline server 127\.0\.0\.1:\d+: .*HTTP 401"):
            tokenizer.encode("a")
        server.key, server.is_away = None, True
        server.leave()
        with pytest.raises(ServerError, match="cannot be reached"):
            tokenizer.encode("a")

    class Odd(FakeServer):
        def __init__(self) -> None:
            super().__init__(rendered=lambda _: ["a"])  # type: ignore[list-item, return-value]

    with tokenizer_of(Odd()) as tokenizer, pytest.raises(ServerError, match="it lists no tokens of a prompt"):
        tokenizer.render_body(SENT)
