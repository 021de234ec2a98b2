"""llama.cpp (`llama-server`): its requests, streams, self-description and metrics, and the arguments of an export.

Its OpenAI answers have no token ids; those of `/completion` do.  With `timings_per_token` every event also reports how
many tokens have been drafted and accepted so far, from which the steps follow one by one.  Read in the sources of build
0c1e570 and tried on it:
- every token is an event, but a token that ends within a character of several bytes has none: its id never comes, and
  only the count of the next event shows it;
- a draft is cut to one token less than may still be emitted, so that no step passes the limit of tokens, and the last
  token of all may be a step without a draft;
- a drafted end token that is emitted counts as not accepted, unless it is the draft's last one;
- parameters of drafting in a request (`speculative.n_max`) are read no more (`server-schema.cpp`);
- the target is sampled at every place and its token compared with the draft's (`exact_match`), and the arms draw the
  same numbers for the same places.

A draft model drafts the arg-max of its logits (`draft-simple`); n-grams are copied from the latest occurrence that as
much follows (`common_ngram_simple_draft`); near a request's limit of output tokens a draft is cut to one token less
than may still be emitted (`get_n_draft_max`).  What it makes of messages is in `common/chat.cpp`.

Relied upon by the export, arguments on one line, quoted for a shell (tests/data/peers/llamacpp.json):
- a draft model always drafts its arg-max, and the target's token is compared with it: rejection has no counterpart;
- it drafts as many tokens at every batch size: `--parallel` keeps the server within the measured loads;
- `ngram-simple` looks up one length of n-grams, copies from the latest occurrence, and drafts nothing shorter than the
  n-gram;
- a number of arguments have changed their names (`--draft-max` is refused now): those of build 0c1e570 are written;
- without arguments a draft model that is given speculates, so that off says `--spec-type none`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Final

from shadowspec.servers.draft_trace import UntraceableError, read_steps
from shadowspec.servers.engines.engine import (
    UNKNOWN,
    Ask,
    ReportedDrafts,
    ServerIdentity,
    ServerPages,
    ServingEngine,
    document_of,
    listed_ids,
)
from shadowspec.servers.engines.export_parts import (
    DepthSchedule,
    Export,
    MethodKeys,
    comment_lines,
    counterpart,
)
from shadowspec.servers.engines.launching import Launcher, ServerStart, with_defaults
from shadowspec.servers.engines.reported_facts import llamacpp_facts
from shadowspec.servers.engines.rules import EngineRules
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.last_step import Ending
from shadowspec.servers.metrics_page import MetricNames, parse
from shadowspec.servers.request import ANY_OBJECT, ServerRequest, choice_rule
from shadowspec.servers.step_counts import Accepted, CountsSource, OtherDepthError, UncountableError, from_ending
from shadowspec.servers.stream import LENGTH, Completion, ServerError, StreamedAnswer
from shadowspec.types import (
    UNSEEDED,
    ConstraintForm,
    DraftSampling,
    NgramOccurrence,
    OutputConstraint,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.prompt_rules import BrokenArguments, PromptRules
from shadowspec.types.served_methods import plain_key

SEEDS: Final = 2**32 - 1  # the number after these means "draw one"
SAMPLERS: Final = ("penalties", "temperature", "min_p", "top_k", "top_p")  # in the order of shadowspec.engine.sampling
TEMPLATE_TOKENS: Final = 4_096  # that a template adds to a chat at most; 0.7 refuses a penalty's -1, the whole context
CERTAIN: Final = 1_000.0  # added to the logit of a token that must come
END_TOKEN: Final = "eos"  # noqa: S105 - why an answer ended
_ENDS: Final = {END_TOKEN: "stop", "word": "stop", "limit": LENGTH}
# It reads another language of grammars, and knows no regular expressions and no structural tags.
FORMS: Final = (ConstraintForm.JSON_OBJECT, ConstraintForm.JSON_SCHEMA, ConstraintForm.CHOICE)
TYPES: Final = {"draft_model": "draft-simple", "eagle3": "draft-eagle3", "ngram": "ngram-simple"}
GGUF: Final = ".gguf"
SLOT_TOKENS: Final = 8_192  # of context, for each request of a server that is started here; fewer where the model ends
REJECTION_MEASURED: Final = "llama.cpp drafts the arg-max and compares, and rejection was measured: exported as off"
_METRICS: Final = MetricNames(
    prefix="llamacpp:",
    counters={
        "num_drafts": "spec_decode_num_drafts_total",
        "num_draft_tokens": "spec_decode_num_draft_tokens_total",
        "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
        "num_output_tokens": "tokens_predicted_total",
        "num_prompt_tokens": "prompt_tokens_total",
        "num_cached_tokens": "prompt_tokens_cached_total",
    },
    latencies={},
    running="requests_processing",
    waiting="requests_deferred",
    position_label="position",
    accepted_per_pos="spec_decode_num_accepted_tokens_per_pos_total",
    num_digits=6,
    excludes_cached=True,
    model_labels=("model", "model_name", "model_id", "model_alias"),  # of routers and proxies: its own page has none
    has_ranks=False,
)


def _drafting_arguments(config: SpeculationConfig, depth: int) -> list[str]:
    """With which llama-server drafts by n-grams or by a model, to this depth."""
    arguments = ["--spec-type", TYPES[config.proposer]]
    if config.proposer == "ngram":
        lookup = ["--spec-ngram-simple-size-n", str(config.ngram_max), "--spec-ngram-simple-size-m", str(depth)]
        return [*arguments, *lookup]
    arguments += ["--spec-draft-model", str(config.draft), "--spec-draft-n-max", str(depth)]
    return [*arguments, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]


def _command_line(start: ServerStart, program: Sequence[str]) -> list[str]:
    words = [
        *(*program, "--model", start.target, "--alias", start.model),
        *("--host", start.host, "--port", str(start.port), "--parallel", str(start.slots)),
        *("--metrics", "--slots", "--jinja"),
    ]
    if start.drafting is not None:
        words += _drafting_arguments(start.drafting, start.drafting.num_speculative_tokens)
    return with_defaults(words, {("--ctx-size", "-c"): str(start.slots * SLOT_TOKENS)})


class _CompletionAnswer(StreamedAnswer):
    """Takes the events of one answer of /completion; how far drafts had come is kept for `draft_trace`."""

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
            "logprobs": {"top_logprobs": [{str(token): logprob for token, logprob in first.items()}]}
            if first
            else None,
        }
        usage = {
            "prompt_tokens": event.get("tokens_evaluated"),
            "completion_tokens": number,
            "prompt_tokens_details": {"cached_tokens": timings.get("cache_n")},
        }
        said = {"progress": self._progress, "stop_type": ended}
        translated = {"choices": [choice], "usage": usage, "metrics": {"speculative_decoding": said}}
        return super()._take_event(translated, now_s)


class LlamaCpp(ServingEngine):
    """llama.cpp by its own API.

    It sometimes closes a connection silently after a streamed answer, so no connection is used twice: the next request
    on it would be lost, and its retry counted as waiting.
    """

    name = "llama.cpp"
    title = "llama.cpp"
    owner = "llamacpp"
    has_salts = False
    metrics = _METRICS
    rules = EngineRules(NgramOccurrence.LATEST_FOLLOWED, DraftSampling.TEMPERATURE, drafts_within_limit=True)
    prompt_rules = PromptRules(
        drops_empty_parts=False,
        joins_system=False,
        reasoning_read=("reasoning_content",),
        reasoning_shown=("reasoning_content",),
        broken_arguments=BrokenArguments.REFUSED,
    )
    speculation_flags = "--spec-type and --metrics"
    launcher = Launcher(("llama-server",), _command_line, methods=TYPES, file_type=GGUF, ngram_sizes=(3, 3))
    method_keys = MethodKeys("spec-type", "spec-draft-n-max", "spec-draft-model")
    counts_source = CountsSource("timings", "each answer's timings")
    uncounted = "sends no timings at each token: it is too old"
    answer_type = _CompletionAnswer
    path = "completion"
    # `common_params_sampling`; a GGUF file may hold others (`general.sampling.*`), which `/props` shows.
    own_sampling: ClassVar[Mapping[str, float]] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    unseeded = UNSEEDED | {SEEDS}  # it reads seeds as 32 bits
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}

    def lacking(self, request: ServerRequest) -> str | None:
        """The name of a parameter that llama.cpp does not have or means otherwise; None where it can be asked for all.

        Its presence and frequency penalties count the prompt's tokens too.
        """
        sampling, constraint = request.sampling, request.constraint
        asked = {
            "min_tokens": sampling.min_tokens > 0,
            "stop_token_ids": bool(sampling.stop_token_ids),
            "presence_penalty": sampling.presence_penalty != 0.0,
            "frequency_penalty": sampling.frequency_penalty != 0.0,
            "constraint": constraint is not None and constraint.form not in FORMS,
        }
        return next((name for name, is_asked in asked.items() if is_asked), None)

    def chat_ids(self, ask: Ask, body: Mapping[str, Any], model: str) -> Sequence[int] | None:
        rendered = ask("apply-template", body)
        prompt = None if rendered is None else rendered.get("prompt")
        return self.text_ids(ask, prompt, model) if isinstance(prompt, str) else None

    def text_ids(self, ask: Ask, text: str, model: str) -> Sequence[int] | None:
        """As /completion and chats read a text: with the special tokens in it, and those that the model adds."""
        return listed_ids(ask("tokenize", {"content": text, "add_special": True, "parse_special": True}))

    def body_of(self, request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
        """The body of /completion, streamed, with every parameter spelled out that the server could choose itself.

        Samplers that are not named do not run.  It knows no salts: a prompt is taken from the cache (`cache_prompt`)
        only where it may find anything there.
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
            "logit_bias": [] if request.only_token is None else [[request.only_token, CERTAIN]],
            "ignore_eos": sampling.ignore_eos,
            "stop": list(sampling.stop),
            "seed": request.seed % SEEDS,
            "backend_sampling": False,
            "cache_prompt": request.uses_cache,
            "return_tokens": True,
            "timings_per_token": True,
            "stream": True,
        }
        if request.constraint is not None:
            body |= constraint_fields(request.constraint)
        if request.num_logprobs:
            body |= {"n_probs": request.num_logprobs, "post_sampling_probs": False}
        return body

    def chat_body_of(self, request: ServerRequest, models: Collection[str], model: str, salt: str) -> dict[str, Any]:
        """The body of a chat, with llama.cpp's names of the sampling parameters beside OpenAI's.

        It restricts the output itself, by the client's own fields.
        """
        own = self.body_of(replace(request, constraint=None), model, salt)
        penalties = {
            "repeat_last_n": len(request.chat or b"") + request.sampling.max_tokens + TEMPLATE_TOKENS,  # or more
            "presence_penalty": request.sampling.presence_penalty,
            "frequency_penalty": request.sampling.frequency_penalty,
        }
        chat = super().chat_body_of(request, models, model, salt)
        left_out = ("model", "prompt", "n_predict", "return_tokens", "n_probs", "post_sampling_probs")
        return chat | {name: value for name, value in own.items() if name not in left_out} | penalties

    def scored_together(self, length: int, start: int) -> list[range]:
        return [range(place, place + 1) for place in range(start, length)]

    def scoring_body_of(
        self, token_ids: Sequence[int], start: int, num_logprobs: int, model: str, salt: str
    ) -> dict[str, Any]:
        """The body of /completion, not streamed, that requests the likeliest tokens at a prompt's last place.

        It reports nothing of a prompt's other places: the text before each place is sent with a request for its next
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

    def prompt_logprobs_of(self, answer: Mapping[str, Any], token_ids: Sequence[int], start: int) -> list[Any]:
        """Those of the last place.

        Of a token that is not among the likeliest llama.cpp does not say how likely it is.  It has the least of their
        log probabilities then, which it cannot exceed.
        """
        logprobs, token_id = _by_id(answer.get("completion_probabilities")), token_ids[-1]
        if not logprobs or not all(type(logprob) in (int, float) for logprob in logprobs.values()):
            return [None]
        return [logprobs if token_id in logprobs else logprobs | {token_id: min(logprobs.values())}]

    async def identify(self, server: ServerPages, entry: Mapping[str, Any]) -> ServerIdentity:
        """llama.cpp's self-description; the context is that of one slot.

        Raises:
            ServerError: it is incomplete, or the server routes requests to others.
        """
        props = document_of(server, await server.look("props"), "/props")
        settings = props.get("default_generation_settings")
        length = settings.get("n_ctx") if isinstance(settings, dict) else None
        if type(length) is not int or length < 1:
            raise ServerError(server.name, "garbage", "/props names no context of a slot: a router's model has none")
        return ServerIdentity(
            self.name,
            str(props.get("build_info", UNKNOWN)),
            str(props.get("model_path", UNKNOWN)),
            length,
            reported_facts=llamacpp_facts(props),
        )

    async def drafts_of(
        self, server: ServerPages, identity: ServerIdentity, answer: Completion | None, model: str
    ) -> ReportedDrafts:
        """Its counters have a place for each token of the longest draft that it may make, once it made one."""
        page, slots = await _look_if_shown(server, "metrics"), await _look_if_shown(server, "slots")
        progress = None if answer is None else (answer.speculation or {}).get("progress")
        number = longest_draft(page, progress, slots)
        return ReportedDrafts(number, counts_by_request=bool(number) and bool(progress), has_metrics=page is not None)

    def longest_draft_in(self, answer: Completion) -> int:
        return _longest_in((answer.speculation or {}).get("progress"))

    async def capacity_of(self, server: ServerPages, identity: ServerIdentity) -> KvCapacity | None:
        """Its slots, each with a separate context, as it was started (`--parallel`, `--ctx-size`).

        With `--kv-unified`, which it does not report, all slots share the context that counts here for one.
        """
        slots, length = self.num_slots(identity), identity.max_model_len
        if slots is None or length is None:
            return None
        return KvCapacity(slots * length, float(slots), (("--ctx-size", str(slots * length)),))

    def num_slots(self, identity: ServerIdentity) -> int | None:
        slots = dict(identity.reported_facts).get("max_num_seqs", "")
        return int(slots) if slots.isdigit() else None

    def refusal_of(self, config: SpeculationConfig) -> str | None:
        if config.verify_rule is not VerifyRule.REJECTION:
            return None
        return 'verify_rule is rejection, and llama.cpp verifies by comparing: set verify_rule = "exact_match"'

    def count(
        self, answer: Completion, num_prompt_tokens: int, num_speculative_tokens: int, *, drafts_always: bool
    ) -> Accepted:
        """From the progress of its drafts at each token."""
        reported = answer.speculation or {}
        if not (progress := reported.get("progress")):
            raise UncountableError("an event has no timings: llama.cpp is too old")
        is_by_end_token = reported.get("stop_type") == END_TOKEN
        try:
            trace = read_steps(
                progress, num_speculative_tokens, drafts_always=drafts_always, is_by_end_token=is_by_end_token
            )
        except UntraceableError as error:
            raise UncountableError(str(error)) from error
        drafted = [step.drafted for step in trace.steps]
        if (longest := max(drafted, default=0)) > num_speculative_tokens:
            raise OtherDepthError(longest, num_speculative_tokens)
        ending = Ending(trace.num_plain, trace.steps[-1] if trace.ends_with_step else None)
        accepted = [step.accepted for step in trace.steps]
        return from_ending(
            drafted, accepted, ending, answer, num_prompt_tokens, num_speculative_tokens, is_sure=trace.is_sure
        )

    def uncertain_tokens(self, finish_reason: str, num_speculative_tokens: int, *, drafts_always: bool) -> int:
        if not drafts_always:
            return num_speculative_tokens - 1
        return int(finish_reason != LENGTH)  # the end token, where it was drafted

    def has_one_depth(self, config: SpeculationConfig) -> bool:
        return True

    def export(self, schedule: DepthSchedule, beside: str) -> Export:
        """The arguments; `--spec-type none` where nothing is on."""
        config, leading = schedule.config, schedule.leading_ranges()
        if config is not None and config.is_served_method:
            return self._served(schedule, config)
        kind = counterpart(config, TYPES)
        if config is None or kind is None or not leading:
            return _off(schedule, self.off_remarks(schedule, TYPES))
        depth, last = leading[0].num_speculative_tokens, leading[0].last
        assert last is not None, "no schedule is on without end"
        if (reason := _off_because(config, depth)) is not None:
            return _off(schedule, [reason])
        remarks = self.rule_remarks(config)
        if schedule.largest_load_on > last:
            remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
        if config.proposer != "ngram" and not str(config.draft).endswith(GGUF):
            remarks.append(f"llama.cpp takes a GGUF file: name the one that was converted from {config.draft}")
        arguments = [*_drafting_arguments(config, depth), "--parallel", str(last)]
        remarks.append(f"--parallel {last} keeps the server at batch sizes that were measured")
        return Export.of([*comment_lines([schedule.basis]), shlex.join(arguments)], remarks)

    def _served(self, schedule: DepthSchedule, config: SpeculationConfig) -> Export:
        """The arguments with which the measured server was started."""
        served = self.served_settings(schedule, config)
        if served.values is None:
            return _off(schedule, served.remarks)
        arguments = [part for name, value in served.values.items() for part in (f"--{_argument(name)}", str(value))]
        arguments += ["--parallel", str(served.max_batch_size)]
        remark = f"--parallel {served.max_batch_size} keeps the server at batch sizes that were measured"
        lines = [*comment_lines([schedule.basis]), shlex.join(arguments)]
        return Export.of(lines, (*served.remarks, remark))


async def _look_if_shown(server: ServerPages, path: str) -> str | None:
    """The text at a path; None where the server was started without it, which llama.cpp answers with 501."""
    try:
        return await server.look(path)
    except ServerError as fault:
        if fault.code != "http_501":
            raise
        return None


def longest_draft(page: str | None, progress: Sequence[Sequence[int]] | None, slots: str | None) -> int | None:
    """The largest number of tokens in a draft: 0 where the server does not speculate, None where it is unknown.

    Args:
        page: its counters, which have a place for each of them once something was drafted.
        progress: an answer's draft counts; its longest draft is used where there is no page.
        slots: the content of /slots: whether the server speculates at all.
    """
    try:
        if places := len(parse(page or "", _METRICS, "").counts.num_accepted_tokens_per_pos):
            return places
    except ValueError:  # the answer's counts suffice
        pass
    if longest := _longest_in(progress):
        return longest
    try:
        listed = json.loads(slots or "")
    except ValueError:
        return None
    speculates = [slot.get("speculative") for slot in listed if isinstance(slot, dict)]
    return 0 if speculates and not any(speculates) else None


def _longest_in(progress: Sequence[Sequence[int]] | None) -> int:
    """The longest draft in an answer's progress of its drafts; 0 without one."""
    drafted = [drafted for _, drafted, _ in progress or ()]
    return max((after - before for before, after in pairwise([0, *drafted])), default=0)


def _by_id(places: Any) -> dict[int, Any] | None:
    """Log probabilities of the first place's likeliest tokens."""
    first = places[0] if isinstance(places, list) and places else None
    entries = first.get("top_logprobs") if isinstance(first, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    return {entry["id"]: entry.get("logprob") for entry in entries if type(entry.get("id")) is int}


def constraint_fields(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional fields of a body of /completion, for a form among `FORMS`."""
    if constraint.form is ConstraintForm.CHOICE:
        return {"grammar": choice_rule(constraint)}
    text = ANY_OBJECT if constraint.form is ConstraintForm.JSON_OBJECT else constraint.text
    return {"json_schema": json.loads(text)}


def _argument(key: str) -> str:
    return plain_key(key).replace("_", "-")


def _off_because(config: SpeculationConfig, depth: int) -> str | None:
    """Why the measured way of drafting cannot be had; None where it can."""
    if config.proposer != "ngram":
        return REJECTION_MEASURED if config.verify_rule is VerifyRule.REJECTION else None
    if config.ngram_min != config.ngram_max:
        return (
            f"llama.cpp looks up one length of n-grams, and {config.ngram_min} to {config.ngram_max} were measured: "
            "exported as off"
        )
    if depth < config.ngram_max:
        return (
            f"llama.cpp drafts no fewer tokens than it looks up ({config.ngram_max}), and {depth} were measured: "
            "exported as off"
        )
    return None


def _off(schedule: DepthSchedule, remarks: Sequence[str]) -> Export:
    lines = [*comment_lines([schedule.basis, "speculation is off"]), shlex.join(["--spec-type", "none"])]
    return Export.of(lines, remarks)
