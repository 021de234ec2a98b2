"""The lines of the traffic file: OpenAI requests and responses as vLLM serves them, and a few bad ones."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import datetime
from typing import Any

from kernels.benchmarks.bundled_pair.prompts import EndpointPlan, Prompt
from shadowspec.engine.decode import Decoded

Record = dict[str, Any]
BAD_OF_EACH_KIND = 2


def public_id(prefix: str, *parts: object) -> str:
    """An opaque id, the same for the same parts."""
    digest = hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).hexdigest()
    return f"{prefix}-{digest}"


def record(
    plan: EndpointPlan,
    prompt: Prompt,
    prompt_token_ids: Sequence[int],
    decoded: Decoded,
    text: str,
    *,
    time: datetime,
    session_id: str,
    user: str,
    tier: str,
    request_id: str,
) -> Record:
    """One mirrored record.  vLLM reports a chat's prompt tokens beside its choices, a completion's within."""
    request: Record = {"model": plan.served_model}
    choice: Record = {"index": 0}
    response: Record = {
        "id": public_id("chatcmpl" if prompt.messages else "cmpl", request_id),
        "object": "chat.completion" if prompt.messages else "text_completion",
        "created": int(time.timestamp()),
        "model": plan.served_model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": len(prompt_token_ids),
            "completion_tokens": len(decoded.output),
            "total_tokens": len(prompt_token_ids) + len(decoded.output),
        },
    }
    if prompt.messages:
        request["messages"] = [dict(message) for message in prompt.messages]
        choice["message"] = {"role": "assistant", "content": text}
        response["prompt_token_ids"] = list(prompt_token_ids)
    else:
        request["prompt"] = prompt.text
        choice["text"] = text
        choice["prompt_token_ids"] = list(prompt_token_ids)
    choice["finish_reason"] = decoded.finish_reason
    choice["token_ids"] = list(decoded.output)
    return {
        "timestamp": time.isoformat(timespec="microseconds"),
        "session_id": session_id,
        "user": user,
        "request_id": request_id,
        "path": "/v1/chat/completions" if prompt.messages else "/v1/completions",
        "request": {**request, **plan.parameters, "return_token_ids": True},
        "response": response,
        "metadata": {"tier": tier},
    }


def to_line(value: object) -> str:
    """One line of the file."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _renamed(good: Record, kind: str) -> Record:
    """A copy with ids of its own, so that it fails for its one fault and not as a duplicate."""
    copy = deepcopy(good)
    copy["request_id"] = public_id("req", kind, good["request_id"])
    copy["response"]["id"] = public_id("resp", kind, good["request_id"])
    return copy


def _broken_json(good: Record) -> str:
    line = to_line(_renamed(good, "broken"))
    return line[: len(line) // 2]


def _not_an_object(good: Record) -> str:
    return to_line([_renamed(good, "array")])


def _truncated_prompt(good: Record) -> str:
    cut = _renamed(good, "truncated")
    content = cut["request"]["messages"][0]["content"]
    cut["request"]["messages"][0]["content"] = f"{content[:40]}... (litellm_truncated {len(content) - 40} chars)"
    return to_line(cut)


def _cache_hit(good: Record) -> str:
    return to_line(_renamed(good, "cached") | {"cache_hit": True})


def _image_content(good: Record) -> str:
    image = _renamed(good, "image")
    message = image["request"]["messages"][-1]
    message["content"] = [
        {"type": "text", "text": message["content"]},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]
    return to_line(image)


def _silent_experiment(good: Record) -> str:
    return to_line(_renamed(good, "silent") | {"is_silent_experiment": True})


def _duplicate(good: Record) -> str:
    return to_line(good)


def _unknown_model(good: Record) -> str:
    unknown = _renamed(good, "unknown")
    unknown["request"]["model"] = unknown["response"]["model"] = "retired-model"
    return to_line(unknown)


BAD_KINDS: tuple[Callable[[Record], str], ...] = (
    _broken_json, _not_an_object, _truncated_prompt, _cache_hit, _image_content, _silent_experiment, _duplicate,
    _unknown_model,
)  # fmt: skip


def with_bad_lines(records: Sequence[Record], rng: random.Random) -> list[str]:
    """The records as lines in order of time, and behind a few of them a line that is bad on purpose."""
    chats = [index for index, good in enumerate(records) if "messages" in good["request"]]
    chosen = rng.sample(chats, len(BAD_KINDS) * BAD_OF_EACH_KIND)
    bad = {index: BAD_KINDS[place % len(BAD_KINDS)] for place, index in enumerate(chosen)}
    lines: list[str] = []
    for index, good in enumerate(records):
        lines.append(to_line(good))
        if index in bad:
            lines.append(bad[index](good))
    return lines
