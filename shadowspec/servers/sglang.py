"""SGLang's API: its requests, its streams, and its self-description.

Its OpenAI answers have no draft counts; those of `/generate` have `meta_info`: how often drafts were verified, and how
many steps accepted how many tokens, counted before an output is cut at its end.  Written after SGLang's sources
(docs/servers.md names the versions); tried only against a fake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shadowspec.servers.grammars import sglang_parameters
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import StreamedAnswer

ENGINE: Final = "sglang"  # as its /v1/models says
CHAINS: Final = (
    "EAGLE",
    "EAGLE3",
    "NEXTN",
    "STANDALONE",
)  # algorithms that draft a chain in every step, with one branch
REPORTED_SETTINGS: Final = (  # its settings on which figures depend
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_draft_model_path",
    "weight_version",
)


def body_of(request: ServerRequest, salt: str) -> dict[str, Any]:
    """The body of /generate, streamed, with every sampling parameter spelled out.

    The salt is sent under both names that versions know; one that knows neither ignores them.
    """
    sampling_parameters = request.sampling
    sampling: dict[str, Any] = {
        "max_new_tokens": sampling_parameters.max_tokens,
        "min_new_tokens": sampling_parameters.min_tokens,
        "temperature": sampling_parameters.temperature,
        "top_p": sampling_parameters.top_p,
        "top_k": sampling_parameters.top_k or -1,
        "min_p": sampling_parameters.min_p,
        "repetition_penalty": sampling_parameters.repetition_penalty,
        "presence_penalty": sampling_parameters.presence_penalty,
        "frequency_penalty": sampling_parameters.frequency_penalty,
        "ignore_eos": sampling_parameters.ignore_eos,
        "skip_special_tokens": not request.keeps_special_tokens,
        "stop": list(sampling_parameters.stop),
        "stop_token_ids": list(sampling_parameters.stop_token_ids),
        "sampling_seed": request.seed,
        "n": 1,
    }
    if request.constraint is not None:
        sampling |= sglang_parameters(request.constraint)
    body = {
        "input_ids": list(request.prompt_token_ids),
        "sampling_params": sampling,
        "stream": True,
        "extra_key": salt,
        "cache_salt": salt,
    }
    if request.num_logprobs:
        body |= {"return_logprob": True, "top_logprobs_num": request.num_logprobs}
    return body


def scoring_body_of(token_ids: Sequence[int], start: int, num_logprobs: int, salt: str) -> dict[str, Any]:
    """The body of /generate, not streamed, that asks for the likeliest tokens at each place from `start` on."""
    return {
        "input_ids": list(token_ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": start - 1,
        "top_logprobs_num": num_logprobs,
        "stream": False,
        "extra_key": salt,
        "cache_salt": salt,
    }


def prompt_logprobs_of(answer: Mapping[str, Any], token_ids: Sequence[int]) -> list[Mapping[int, Any] | None]:
    """Log probabilities by token of the last places, one place for each of these tokens; None where it has none."""
    meta = answer.get("meta_info")
    chosen, likeliest = (
        (meta.get(name) if isinstance(meta, dict) else None) for name in ("input_token_logprobs", "input_top_logprobs")
    )
    if (
        not isinstance(chosen, list)
        or not isinstance(likeliest, list)
        or not len(token_ids) <= len(chosen) == len(likeliest)
    ):
        return [None] * len(token_ids)
    first = len(chosen) - len(token_ids)
    return [
        None if drawn is None or drawn.keys() != {token} or every is None else every | drawn
        for token, drawn, every in zip(
            token_ids,
            (_by_id([each]) for each in chosen[first:]),
            (_by_id(each) for each in likeliest[first:]),
            strict=True,
        )
    ]


def chain_length(settings: Mapping[str, str]) -> int:
    """How many tokens it drafts in each step; 0 where it does not speculate."""
    if settings.get("speculative_algorithm", "None") == "None":
        return 0
    steps = settings.get("speculative_num_steps", "")
    return int(steps) if steps.isdigit() else 0


def uncountable(settings: Mapping[str, str]) -> str | None:
    """Why its accepted tokens cannot be counted as ours; None where they can."""
    algorithm, steps = settings.get("speculative_algorithm", "None"), settings.get("speculative_num_steps", "")
    if algorithm == "None":
        return None
    if algorithm not in CHAINS:
        return f"SGLang's counts with {algorithm} are not supported; supported: {', '.join(CHAINS)}"
    if settings.get("speculative_adaptive", "False") != "False":
        return "SGLang drafts another number of tokens now and then: start it without --speculative-adaptive"
    if settings.get("speculative_eagle_topk") != "1":
        return "SGLang drafts a tree: start it with --speculative-eagle-topk 1"
    if not steps.isdigit() or settings.get("speculative_num_draft_tokens") != str(int(steps) + 1):
        return "SGLang verifies other tokens than a chain: leave out --speculative-num-draft-tokens"
    return None


def spec_fields(meta: Mapping[str, Any]) -> tuple[int, list[int]] | None:
    """How often drafts were verified, and how many steps accepted how many tokens; None where it does not say.

    Versions have called the second by two names.
    """
    verified = meta.get("spec_verify_ct")
    histogram = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
    if type(verified) is not int or not isinstance(histogram, list):
        return None
    return (verified, histogram) if all(type(each) is int and each >= 0 for each in histogram) else None


def num_proposed(meta: Mapping[str, Any]) -> int | None:
    """How many tokens were drafted; None where it does not say."""
    names = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
    return next((meta[name] for name in names if type(meta.get(name)) is int), None)


def num_retractions(meta: Mapping[str, Any]) -> int:
    """How often the request was removed from its batch and restarted with its tokens so far."""
    return next((meta[name] for name in ("num_retractions", "total_retractions") if type(meta.get(name)) is int), 0)


class SglangAnswer(StreamedAnswer):
    """Takes the events of one answer of /generate.

    An event holds the tokens so far, or, where the server streams increments, the further ones.
    """

    def _take_event(self, event: Mapping[str, Any], now_s: float) -> bool:
        meta, ids, text = event.get("meta_info"), event.get("output_ids"), event.get("text", "")
        if event.get("error"):
            return super()._take_event(event, now_s)
        if not isinstance(meta, dict) or not isinstance(ids, list) or not isinstance(text, str):
            raise self._fault("garbage", "an event has no tokens, or no metadata of them")
        number = meta.get("completion_tokens")
        if type(number) is not int:
            raise self._fault("miscounted", "an event does not say how many tokens there are")
        is_whole = len(ids) >= number
        if not is_whole and len(self._ids) + len(ids) != number:
            raise self._fault("miscounted", "the server counts another number of output tokens than it sent")
        if is_whole and ids[: len(self._ids)] != self._ids:
            raise self._fault("garbage", "tokens that were already sent have changed")
        reason = meta.get("finish_reason")
        choice = {
            "text": "" if is_whole else text,
            "token_ids": ids[len(self._ids) :] if is_whole else ids,
            "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
            "logprobs": _first_top(meta.get("output_top_logprobs")),
        }
        details = {"prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}}
        usage = {"prompt_tokens": meta.get("prompt_tokens"), "completion_tokens": number} | details
        translated = {"choices": [choice], "usage": usage, "metrics": {"speculative_decoding": meta}}
        brought = super()._take_event(translated, now_s)
        if is_whole:
            self._texts = [text]
        return brought


def _first_top(settings: Any) -> dict[str, Any] | None:
    """The first place's likeliest tokens, as OpenAI's answers have them."""
    if not isinstance(settings, list) or not settings or (first := _by_id(settings[0])) is None:
        return None
    return {"top_logprobs": [{str(token): each for token, each in first.items()}]}


def _by_id(entries: Any) -> dict[int, Any] | None:
    """Log probabilities by token, from entries of log probability, token and text."""
    if not isinstance(entries, list) or not all(isinstance(each, list) and len(each) >= 2 for each in entries):
        return None
    if not all(type(each[1]) is int for each in entries):
        return None
    return {each[1]: each[0] for each in entries}
