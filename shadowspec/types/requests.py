"""Requests: sampling parameters, constraints on outputs, the key of a record, and one request to measure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct, structs

from shadowspec.types.flags import Intervention, OutputContract

# Headers of a classified request: its endpoint, and the `slice_tag` of its slice, each NO_SLICE where there is none.
ENDPOINT_HEADER: Final = "x-shadowspec-endpoint"
SLICE_HEADER: Final = "x-shadowspec-slice"
NO_SLICE: Final = "none"  # no route matches it
UNSEEDED: Final = frozenset({-1})  # seeds by which a request asks for none, as servers and clients mean it
OUTPUT_CONSTRAINT: Final = "output_constraint"  # the slice label; requests without a constraint do not have it
REASONING: Final = "reasoning"  # the slice label: "on" or "off"; requests that say nothing of it do not have it
UNSTATED: Final = "none"  # the value of both where `slice_by` names it and the request does not
OWN_SLICES: Final = (OUTPUT_CONSTRAINT, REASONING)  # labels that are part of a slice for any `slice_by`


class SamplingRegime(StrEnum):
    """Coarse sampling regime of a request: temperature 0, up to 0.5, above."""

    GREEDY = "greedy"
    LOW = "low"
    HIGH = "high"

    __hash__ = str.__hash__  # an enum's is a call in Python, and labels are looked up under


class SamplingParameters(Struct, frozen=True):
    """The production engine's sampling; the field's parameters with their neutral values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 256
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    @property
    def regime(self) -> SamplingRegime:
        if self.temperature == 0.0:
            return SamplingRegime.GREEDY
        return SamplingRegime.LOW if self.temperature <= 0.5 else SamplingRegime.HIGH

    @property
    def is_penalised(self) -> bool:
        """Whether logits depend on the tokens seen before by more than the model."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def temperature_alone(self) -> SamplingParameters:
        """The same request with only its temperature: no minimum length, penalties and truncation."""
        return structs.replace(
            self,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            repetition_penalty=1.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            min_tokens=0,
        )

    def truncates(self, vocabulary: int) -> bool:
        """Whether min-p, top-k or top-p may take tokens from the distribution that is sampled."""
        return self.temperature > 0.0 and (self.min_p > 0.0 or 0 < self.top_k < vocabulary or self.top_p < 1.0)


class ConstraintKind(StrEnum):
    """The clients' name of a constraint: the value of the slice label."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"  # a regular expression, a choice, a context-free grammar or a structural tag
    TOOL = "tool"  # a forced call, or a tool whose arguments have to fit its schema


class ConstraintForm(StrEnum):
    """The forms that the servers' grammar backends accept."""

    JSON_OBJECT = "json_object"  # any JSON object
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"  # context-free, in EBNF as the grammar backends read it
    STRUCTURAL_TAG = "structural_tag"  # JSON schemas between tags


class OutputConstraint(Struct, frozen=True):
    """The restriction of one request's output, which a server enforces by a mask over its vocabulary.

    The text of a schema or a grammar comes from the request.  It travels with the request to the servers and is stored
    nowhere: a slice label records only the kind of constraint.

    `text` is the schema as JSON, the regular expression, the grammar, the choices as a JSON array or the structural tag
    as JSON; "" of a JSON object.  `tool_name` is the one tool that a request forces, whose arguments the schema is of.
    """

    kind: ConstraintKind
    form: ConstraintForm
    text: str = ""
    tool_name: str | None = None

    def __repr__(self) -> str:  # without its text
        return f"OutputConstraint({self.kind!r}, {self.form!r})"


class RecordKey(NamedTuple):
    """Identity of one consumed record: topic id or file sha256, partition, offset or line, timestamp.

    `offset` of a file is the 1-based line; `partition` is 0; `timestamp_ms` is the record's (0 if none);
    `item` is the place within a message that holds several records (0: the first or only one).
    A tuple, because records are looked up and sorted by it millions of times.
    """

    source: str
    partition: int
    offset: int
    timestamp_ms: int = 0
    item: int = 0

    def __str__(self) -> str:
        place = f"{self.source}[{self.partition}]@{self.offset}/{self.timestamp_ms}"
        return f"{place}#{self.item}" if self.item else place


class LoggedResponse(Struct, frozen=True):
    """Production's answer, where the record holds it."""

    token_ids: tuple[int, ...] | None = None
    token_logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    num_output_tokens: int | None = None
    num_cached_tokens: int | None = None  # of the prompt, from production's prefix cache; None: it does not say

    def __repr__(self) -> str:  # without its text
        return f"LoggedResponse({self.finish_reason!r}, num_output_tokens={self.num_output_tokens!r})"


class ShadowPrompt(Struct, frozen=True):
    """One request to measure.  Hashes are HMAC-SHA256 hex; `labels` holds every slice label by name."""

    key: RecordKey
    endpoint: str
    event_time: datetime  # aware, UTC
    labels: Mapping[str, str]  # prompt_class, sampling_regime, context_bucket and the user's labels
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParameters
    session_hash: str | None = None
    user_hash: str | None = None
    request_id_hash: str | None = None
    response: LoggedResponse | None = None
    contract: OutputContract | None = None  # the required form of its output
    intervention: Intervention | None = None  # production's action on its output
    constraint: OutputConstraint | None = None  # for a server to enforce; the in-process engine cannot
    reference: str | None = None  # production's answer as text, for scores; None: the record has none
    unit_key: str | None = None  # of its session's day, or of its substitute; None: its session has one
    chat: bytes | None = None  # the client's chat request as JSON, for a server to render; None: token ids are sent

    @property
    def conversation_key(self) -> str | None:
        """Of the turns that are measured together; None: it belongs to no session."""
        return None if self.session_hash is None else self.unit_key or self.session_hash

    def __repr__(self) -> str:  # without its text
        return f"ShadowPrompt({self.key!r}, endpoint={self.endpoint!r}, {self.sampling!r})"

    def seed_under(self, seed: int) -> int:
        """The source of every arm's random numbers: the request's seed, or one made of its key and this one."""
        if self.sampling.seed is not None:
            return self.sampling.seed
        digest = hashlib.sha256(f"{seed}\0{self.key}".encode()).digest()
        return int.from_bytes(digest[:8], "big")


def format_slice_key(labels: Mapping[str, str], slice_by: tuple[str, ...]) -> str:
    """The canonical name of a slice: `label=value` joined by commas in the order of `slice_by`.

    Requests whose output is constrained are separate slices, for any `slice_by`: a mask changes the possible outputs
    and the cost of a step.  So are requests with reasoning and without, where they say so.  The names of all other
    slices do not depend on the presence of such requests.
    """
    names = (*slice_by, *(name for name in OWN_SLICES if name in labels and name not in slice_by))
    return ",".join([f"{name}={labels.get(name, 'unknown')}" for name in names])


def parse_slice_key(slice_key: str) -> dict[str, str]:
    """The labels of a canonical slice name; {} for the whole endpoint."""
    return dict(part.split("=", 1) for part in slice_key.split(",")) if slice_key else {}


def slice_tag(endpoint: str, slice_key: str) -> str:
    """The text by which routes know a slice ("": the whole endpoint): one value of a header, without commas."""
    return f"{endpoint}/{slice_key.replace(',', ';')}" if slice_key else endpoint
