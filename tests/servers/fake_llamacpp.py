"""A server that speaks llama.cpp's own API, as build 0c1e570 was recorded to speak it, unless told otherwise.

Every token is an event with the counts so far; a draft is cut to one token less than may still be emitted.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from tests.servers.fake_server import FakeServer, begin, end, place_logprobs, respond, send_event, text_of, tokens_of


@dataclass
class FakeLlamaCpp(FakeServer):
    """A llama-server: one model, `slots` requests at once, each with `max_model_len` tokens of context."""

    owner: str = "llamacpp"
    version: str = "b1-0c1e570"
    returns_token_ids: bool = False  # in chats; its own API does
    slots: int = 4
    shows_slots: bool = True
    tells_positions: bool = True  # in /metrics, of what was drafted
    tells_timings: bool = True
    cached: int = 0  # of the prompt that is answered
    hidden: frozenset[int] = frozenset()  # output places whose tokens end within a character
    ends: str = "limit"
    changes_last: dict[str, Any] = field(default_factory=dict)  # of the final event

    async def _look(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/props":
            props = {
                "default_generation_settings": {"params": {"seed": 4294967295}, "n_ctx": self.max_model_len},
                "total_slots": self.slots,
                "model_alias": self.model,
                "model_ftype": "all F32",
                "model_path": "/models/t.gguf",
                "endpoint_slots": self.shows_slots,
                "endpoint_metrics": self.has_metrics,
                "build_info": self.version,
                "is_sleeping": False,
            }
            await respond(writer, 200, json.dumps(props))
        elif path == "/slots" and self.shows_slots:
            speculates = self.num_speculative_tokens > 0
            entry = {"n_ctx": self.max_model_len, "speculative": speculates, "is_processing": False}
            await respond(writer, 200, json.dumps([{"id": number} | entry for number in range(self.slots)]))
        elif path in ("/slots", "/metrics") and not (path == "/metrics" and self.has_metrics):
            error = {"code": 501, "message": "hush", "type": "not_supported_error"}
            await respond(writer, 501, json.dumps({"error": error}))
        elif path == "/version":
            await respond(writer, 404, "{}")
        else:
            await super()._look(path, writer)

    async def _tokenize(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """As llama.cpp: a template makes a text of a chat, and the tokenizer ids of a text."""
        self.num_tokenized += 1
        if not self.tells_tokens:
            await respond(writer, 404, "{}")
        elif path == "/apply-template" and self.refuses_chats:
            await respond(writer, 500, '{"error": {"code": 500, "message": "hush", "type": "server_error"}}')
        elif path == "/apply-template":
            text = "".join(f"{message['role'][0]}{message.get('content') or ''}" for message in body["messages"])
            await respond(writer, 200, json.dumps({"prompt": text + json.dumps(body.get("tools") or "")}))
        else:
            assert body["add_special"] is body["parse_special"] is True
            await respond(writer, 200, json.dumps({"tokens": tokens_of(body["content"])}))

    def _metrics(self) -> str:
        names = {
            "prompt_tokens_total": 100,
            "tokens_predicted_total": self.num_generated,
            "spec_decode_num_draft_tokens_total": self.counters["draft"],
            "spec_decode_num_accepted_tokens_total": self.counters["accepted"],
            "spec_decode_num_drafts_total": self.counters["drafts"],
        }
        lines = [
            f"# HELP llamacpp:{name} x\n# TYPE llamacpp:{name} counter\nllamacpp:{name} {value}"
            for name, value in names.items()
        ]
        if self.counters["drafts"] and self.tells_positions:
            name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f"# HELP {name} x", f"# TYPE {name} counter"]
            lines += [f'{name}{{position="{place}"}} {number}' for place, number in enumerate(self.per_pos)]
        return "\n".join(lines) + "\n"

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not 0 <= body.get("repeat_last_n", 0) < 2**31:  # as 0.7; -1 was the whole context
            await respond(writer, 400, json.dumps({"error": {"code": 400, "message": "hush"}}))
            return
        if not body.get("stream"):
            await (self._score(body, writer) if "n_probs" in body else self._answer_whole(body, writer))
            return
        if len(body["prompt"]) >= self.max_model_len:
            error = {"code": 400, "message": "hush", "type": "exceed_context_size_error"}
            await respond(writer, 400, json.dumps({"error": error}))
            return
        await super()._complete(body, writer)

    async def _answer_whole(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Not streamed: with every token's id."""
        tokens = self.output(body)
        answer = {"content": "hush", "tokens": tokens, "stop": True, "tokens_predicted": len(tokens)}
        await respond(writer, 200, json.dumps(answer | {"stop_type": self.ends}))

    async def _score(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """One token of which the likeliest are told."""
        self.scored.append(body)
        top = self.reported(self._top(body))
        places = [{"id": 5, "token": "hush", "logprob": -1.0, "top_logprobs": top}]
        answer = {"content": "hush", "tokens": [5], "stop": True, "tokens_predicted": 1, "stop_type": "limit"}
        await respond(writer, 200, json.dumps(answer | ({"completion_probabilities": places} if top else {})))

    def _top(self, body: dict[str, Any]) -> list[Any]:
        every = place_logprobs(body["prompt"])
        ranked = sorted(range(len(every)), key=lambda each: -every[each])[: body["n_probs"]]
        return [{"id": each, "token": "hush", "bytes": [104], "logprob": every[each]} for each in ranked]

    def output(self, body: dict[str, Any]) -> list[int]:
        return super().output({"prompt": body["prompt"], "max_tokens": body.get("n_predict") or body["max_tokens"]})

    def steps(self, body: dict[str, Any]) -> list[tuple[int, int, list[int]]]:
        """Drafted, accepted and emitted of each step, the prefill's first."""
        tokens, place = self.output(body), 1
        found = [(0, 0, tokens[:1])]
        while place < len(tokens):
            drafted = min(self.num_speculative_tokens, len(tokens) - place - 1)
            accepted = min(drafted, (len(found) + len(body["prompt"])) % (self.num_speculative_tokens + 1))
            found.append((drafted, accepted, tokens[place : place + accepted + 1]))
            place += accepted + 1
        return found

    def events(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The events of a good answer; one whose token is hidden is left out."""
        steps = self.steps(body)
        self._count(steps)
        if body.get("is_chat"):  # of OpenAI's API: no token ids, and no counts of steps
            texts = [text_of([token]) for _, _, emitted in steps for token in emitted]
            parts = [{"index": 0, "text": text, "finish_reason": None} for text in texts]
            parts[-1]["finish_reason"] = "length"
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(texts)}
            usage |= {"prompt_tokens_details": {"cached_tokens": 0}}  # type: ignore[dict-item]
            answered = [{"model": self.model, "choices": [part]} for part in parts]
            return self.chat_events(body, [*answered, {"model": self.model, "choices": [], "usage": usage}])
        found = self.cached_tokens({"prompt": body["prompt"], "cache_salt": ""})  # its cache knows no salts
        self.pages = {
            page: None for page in self.pages if page[1] == tuple(body["prompt"][: len(page[1])])
        }  # one slot's
        self.cached = found if body["cache_prompt"] else 0
        events: list[dict[str, Any]] = []
        number = drafted = accepted = 0
        for drafts, accepts, emitted in steps:
            drafted, accepted = drafted + drafts, accepted + accepts
            for token in emitted:
                number += 1
                if number - 1 not in self.hidden:
                    text = {"content": chr(97 + token % 26), "tokens": [token], "stop": False, "id_slot": 0}
                    events.append({"index": 0} | text | self._counts(body, number, drafted, accepted))
        if body.get("n_probs"):
            events[0]["completion_probabilities"] = [{"id": 6, "top_logprobs": [
                {"id": 6, "logprob": -0.25}, {"id": 7, "logprob": -0.75}]}]  # fmt: skip
        last = {"content": "", "tokens": [], "stop": True, "model": self.model, "stop_type": self.ends,
                "truncated": False, "stopping_word": ""}  # fmt: skip
        return [*events, last | self._counts(body, number, drafted, accepted) | self.changes_last]

    def _counts(self, body: dict[str, Any], number: int, drafted: int, accepted: int) -> dict[str, Any]:
        read = len(body["prompt"]) - self.cached
        timings: dict[str, Any] = {"cache_n": self.cached, "prompt_n": read, "predicted_n": number}
        timings |= {"draft_n": drafted, "draft_n_accepted": accepted} if drafted else {}
        counted = {"tokens_predicted": number, "tokens_evaluated": len(body["prompt"])}
        return counted | ({"timings": timings} if self.tells_timings else {})

    def _count(self, steps: list[tuple[int, int, list[int]]]) -> None:
        drafting = [(drafted, accepted) for drafted, accepted, _ in steps if drafted]
        self.per_pos = self.per_pos or [0] * self.num_speculative_tokens
        self.per_pos = [
            number + sum(accepted > place for _, accepted in drafting) for place, number in enumerate(self.per_pos)
        ]
        self.counters["drafts"] += len(drafting)
        self.counters["draft"] += sum(drafted for drafted, _ in drafting)
        self.counters["accepted"] += sum(accepted for _, accepted in drafting)
        self.num_generated += sum(len(emitted) for _, _, emitted in steps)


async def stepwise(server: FakeServer, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """A good answer whose every step takes `step_s`, however many tokens it emits."""
    assert isinstance(server, FakeLlamaCpp)
    begin(writer)
    events = iter(server.events(body))
    for _, _, emitted in server.steps(body):
        await asyncio.sleep(server.step_s)
        for _ in emitted:
            await send_event(writer, next(events))
    await send_event(writer, next(events))
    await end(writer)
