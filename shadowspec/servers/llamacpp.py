"""llama.cpp's API (`llama-server`): its requests, its streams, and its self-description.

Its OpenAI answers have no token ids; those of `/completion` do.  With `timings_per_token` every event also reports how
many tokens have been drafted and accepted so far, from which the steps follow one by one.  Read in the sources of build
0c1e570 and tried on it:
- every token is an event, but a token that ends within a character of several bytes has none: its id never comes, and
  only the count of the next event shows it;
- a draft is cut to one token less than may still be emitted, so that no step passes the limit of tokens, and the last
  token of all may be a step without a draft;
- a drafted end token that is emitted counts as not accepted, unless it is the draft's last one;
- the target is sampled at every place and its token compared with the draft's (`exact_match`), and the arms draw the
  same numbers for the same places.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from shadowspec.servers.grammars import LLAMACPP_FORMS, llamacpp_fields
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import StreamedAnswer

ENGINE: Final = "llama.cpp"
OWNER: Final = "llamacpp"  # as its /v1/models says
POSITIONS: Final = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"  # a line for each drafted token
SEEDS: Final = 2**32 - 1  # the number after these means "draw one"
SAMPLERS: Final = ("penalties", "temperature", "min_p", "top_k", "top_p")  # in the order of shadowspec.engine.sampling
REPORTED_SETTINGS: Final = ("total_slots", "model_ftype")  # of /props, those that figures depend on
_ENDS: Final = {"eos": "stop", "word": "stop", "limit": "length"}


def num_slots(settings: Mapping[str, str]) -> int | None:
    """How many requests it serves at once, by its own report; None without one."""
    slots = settings.get("total_slots", "")
    return int(slots) if slots.isdigit() else None


def lacking(request: ServerRequest) -> str | None:
    """The name of a parameter that llama.cpp does not have or means otherwise; None where it can be asked for all.

    Its presence and frequency penalties count the prompt's tokens too.
    """
    sampling, constraint = request.sampling, request.constraint
    asked = {
        "min_tokens": sampling.min_tokens > 0,
        "stop_token_ids": bool(sampling.stop_token_ids),
        "presence_penalty": sampling.presence_penalty != 0.0,
        "frequency_penalty": sampling.frequency_penalty != 0.0,
        "constraint": constraint is not None and constraint.form not in LLAMACPP_FORMS,
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)


def body_of(request: ServerRequest, model: str) -> dict[str, Any]:
    """The body of /completion, streamed, with every parameter spelled out that the server could choose itself.

    Samplers that are not named do not run.  No prompt is taken from the cache (`cache_prompt`), so that no salt is
    needed, but a later turn of a conversation, which may find the earlier ones in its slot.
    """
    sampling = request.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": list(request.prompt_token_ids),
        "n_predict": sampling.max_tokens,
        "samplers": list(SAMPLERS),
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "min_keep": 0,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": len(request.prompt_token_ids) + sampling.max_tokens,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "mirostat": 0,
        "logit_bias": [],
        "ignore_eos": sampling.ignore_eos,
        "stop": list(sampling.stop),
        "seed": request.seed % SEEDS,
        "backend_sampling": False,
        "cache_prompt": request.is_later_turn,
        "return_tokens": True,
        "timings_per_token": True,
        "stream": True,
    }
    if request.constraint is not None:
        body |= llamacpp_fields(request.constraint)
    if request.num_logprobs:
        body |= {"n_probs": request.num_logprobs, "post_sampling_probs": False}
    return body


def scoring_body_of(token_ids: Sequence[int], num_logprobs: int, model: str) -> dict[str, Any]:
    """The body of /completion, not streamed, that requests the likeliest tokens at a prompt's last place.

    llama.cpp reports nothing of a prompt's other places: the text before each place is sent with a request for its next
    token.  The prompt is in the cache, because the place before it has just been requested.
    """
    return {
        "model": model,
        "prompt": list(token_ids[:-1]),
        "n_predict": 1,
        "samplers": ["temperature"],
        "temperature": 0.0,
        "logit_bias": [],
        "stop": [],
        "n_probs": num_logprobs,
        "post_sampling_probs": False,
        "backend_sampling": False,
        "cache_prompt": True,
        "return_tokens": True,
        "stream": False,
    }


def last_logprobs_of(answer: Mapping[str, Any], token_id: int) -> dict[int, Any] | None:
    """Log probabilities by token at that place, and of this token; None where the answer has none.

    Of a token that is not among the likeliest llama.cpp does not say how likely it is.  It has the least of their log
    probabilities then, which it cannot exceed.
    """
    found = _by_id(answer.get("completion_probabilities"))
    if not found or not all(type(each) in (int, float) for each in found.values()):
        return None
    return found if token_id in found else found | {token_id: min(found.values())}


class LlamaCppAnswer(StreamedAnswer):
    """Takes the events of one answer of /completion; how far drafts had come is kept for `llamacpp_steps`."""

    def __init__(self, server: str, model: str, request: ServerRequest, sent_s: float) -> None:
        super().__init__(server, model, request, sent_s)
        self._num_tokens = 0
        self._progress: list[list[int]] | None = []

    def _take_event(self, event: Mapping[str, Any], now_s: float) -> bool:
        if event.get("error"):
            return super()._take_event(event, now_s)
        ids, number, timings = event.get("tokens"), event.get("tokens_predicted"), event.get("timings")
        if not isinstance(ids, list) or type(number) is not int:
            raise self._fault("garbage", "an event has no tokens, or does not count them")
        if number < self._num_tokens + len(ids):
            raise self._fault("miscounted", "the server counts another number of output tokens than it sent")
        if number > self._num_tokens + len(ids):
            self._has_ids = False  # of tokens within a character
        self._num_tokens = number
        timings = timings if isinstance(timings, dict) else {}
        drafted, accepted = (timings.get(name, 0) for name in ("draft_n", "draft_n_accepted"))  # absent before a draft
        if not timings or type(drafted) is not int or type(accepted) is not int:
            self._progress = None
        elif self._progress is not None:
            self._progress.append([number, drafted, accepted])
        first = _by_id(event.get("completion_probabilities")) or {}
        ended = event.get("stop_type") if event.get("stop") is True else None
        choice = {
            "text": event.get("content", ""),
            "token_ids": ids,
            "finish_reason": None if ended is None else _ENDS.get(str(ended), str(ended)),
            "logprobs": {"top_logprobs": [{str(token): each for token, each in first.items()}]} if first else None,
        }
        usage = {
            "prompt_tokens": event.get("tokens_evaluated"),
            "completion_tokens": number,
            "prompt_tokens_details": {"cached_tokens": timings.get("cache_n")},
        }
        said = {"progress": self._progress, "stop_type": ended}
        translated = {"choices": [choice], "usage": usage, "metrics": {"speculative_decoding": said}}
        return super()._take_event(translated, now_s)


def longest_draft(metrics: str | None, progress: Sequence[Sequence[int]] | None, slots: str | None) -> int | None:
    """The largest number of tokens in a draft: 0 where the server does not speculate, None where it is unknown.

    Args:
        metrics: the page of its counters, which has a place for each of them once something was drafted.
        progress: an answer's draft counts; its longest draft is used where there is no page.
        slots: the content of /slots: whether the server speculates at all.
    """
    if places := len(set(re.findall(rf'^{POSITIONS}{{position="(\d+)"}}', metrics or "", re.MULTILINE))):
        return places
    drafted = [drafted for _, drafted, _ in progress or ()]
    if longest := max((after - before for before, after in pairwise([0, *drafted])), default=0):
        return longest
    try:
        listed = json.loads(slots or "")
    except ValueError:
        return None
    speculates = [each.get("speculative") for each in listed if isinstance(each, dict)]
    return 0 if speculates and not any(speculates) else None


def _by_id(places: Any) -> dict[int, Any] | None:
    """Log probabilities of the first place's likeliest tokens."""
    first = places[0] if isinstance(places, list) and places else None
    entries = first.get("top_logprobs") if isinstance(first, dict) else None
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        return None
    return {each["id"]: each.get("logprob") for each in entries if type(each.get("id")) is int}
