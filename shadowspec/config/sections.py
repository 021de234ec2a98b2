"""The sections of the configuration file as pydantic models: which keys there are and what each may hold."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shadowspec.tap.endpoints import DEFAULT_SLICE_BY

DEFAULT_DATABASE_URL: Final = "sqlite:///shadowspec.db"
BUILT_IN_LABELS: Final = ("prompt_class", "sampling_regime", "context_bucket", "tenant")
PERSONAL_METADATA: Final = ("session_id", "user", "user_id", "request_id")

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
_LABEL = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
Positive = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """Unknown keys are errors, and so are values of another type."""

    # Strict: "4" is not 4, and 1 is not true.  Values are kept out of messages, a URL may hold a password.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class DatabaseSection(Section):
    """[database]"""

    url: Text = DEFAULT_DATABASE_URL


class PrivacySection(Section):
    """[privacy]"""

    hash_secret_file: Text | None = None


class EngineSection(Section):
    """[engine]"""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    warmup_blocks: Annotated[int, Field(ge=0)] = 2


class MatchSection(Section):
    """[endpoints.NAME] match"""

    endpoint: Text | None = None
    model: Text | None = None
    path: Text | None = None


class LoadSection(Section):
    """[endpoints.NAME] loads"""

    concurrency: Positive
    share: Annotated[float, Field(gt=0)] = 1.0


class CandidateSection(Section):
    """[[endpoints.NAME.candidates]]"""

    name: Annotated[str, Field(pattern=_NAME)]
    proposer: Literal["draft_model", "ngram"] = "draft_model"
    draft: Text | None = None
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)]
    verify_rule: Literal["rejection", "greedy_draft", "exact_match"] | None = None
    ngram_min: Positive = 2
    ngram_max: Positive = 4

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.proposer == "draft_model") != (self.draft is not None):
            raise ValueError("draft_model needs a draft, ngram takes none")
        if self.proposer == "draft_model" and self.model_fields_set & {"ngram_min", "ngram_max"}:
            raise ValueError("ngram_min and ngram_max are for the proposer ngram")
        if self.ngram_min > self.ngram_max:
            raise ValueError("ngram_min must not exceed ngram_max")
        if self.proposer == "ngram" and self.verify_rule == "rejection":
            raise ValueError("ngram proposes no probabilities: verify_rule must be greedy_draft or exact_match")
        return self


class DefaultSamplingSection(Section):
    """[endpoints.NAME.default_sampling]"""

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None


class EndpointSection(Section):
    """[endpoints.NAME]"""

    target: Text
    served_models: Annotated[list[Text], Field(min_length=1)]
    match: MatchSection | None = None
    slice_by: Annotated[list[str], Field(min_length=1)] = list(DEFAULT_SLICE_BY)
    labels: list[Annotated[str, Field(pattern=_LABEL)]] = []
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    loads: Annotated[list[LoadSection], Field(min_length=1)] = [LoadSection(concurrency=4)]
    max_age_s: Annotated[float, Field(gt=0)] | None = None
    max_new_tokens: Positive | None = None
    default_sampling: DefaultSamplingSection = DefaultSamplingSection()
    candidates: Annotated[list[CandidateSection], Field(min_length=1)]
    gate: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if taken := set(self.labels) & {*BUILT_IN_LABELS, *PERSONAL_METADATA}:
            raise ValueError(f"labels: {sorted(taken)[0]} is not the operator's to define")
        if unknown := [name for name in self.slice_by if name not in (*BUILT_IN_LABELS, *self.labels)]:
            raise ValueError(f"slice_by: {unknown[0]} is no label; add it to labels to take it from the metadata")
        for what, names in (
            ("slice_by", self.slice_by),
            ("candidates", [candidate.name for candidate in self.candidates]),
            ("loads", [load.concurrency for load in self.loads]),
        ):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: the same one stands there twice")
        return self


class FileSection(Section):
    """The whole file."""

    database: DatabaseSection = DatabaseSection()
    privacy: PrivacySection = PrivacySection()
    engine: EngineSection = EngineSection()
    gate: dict[str, Any] = {}
    endpoints: dict[Annotated[str, Field(pattern=_NAME)], EndpointSection] = {}
