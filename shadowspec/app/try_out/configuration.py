"""The configuration of a trial, written as text: one endpoint, one load, the trial policy."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shadowspec.app.try_out.survey import Slicing
from shadowspec.app.try_out.trial_servers import UNSTATED, TrialCandidate, TrialServers
from shadowspec.errors import InputError
from shadowspec.tap.formats import FieldMap
from shadowspec.tap.load_trace import LoadTrace
from shadowspec.text import sentence

NUM_TOKENS: Final = {"draft_model": 4, "ngram": 4, "suffix": 8}  # drafted in a step, as vLLM's guides begin
CONFIG, DATABASE, SECRET = "shadowspec.toml", "shadowspec.db", "shadowspec.secret"  # files of a trial's folder
SECRET_BYTES: Final = 32
DEFAULT_LOAD: Final = 4  # requests at once
LONGEST_NAME: Final = 64  # characters of an endpoint's name


@dataclass(frozen=True, slots=True)
class TrialInputs:
    """What a trial is of.  Another value of any field makes another trial."""

    target: Path | None  # absolute, like all paths here; None: only the servers have it
    draft: Path | None
    traffic: Path | None  # None: of a configuration that is for none
    traffic_digest: str
    served_models: tuple[str, ...]
    serving_engine: str
    concurrency: int
    field_map: FieldMap | None = None
    trace: LoadTrace | None = None  # whose times its records take
    servers: TrialServers | None = None  # through which it is measured; None: in this process

    @property
    def header(self) -> str:
        """The first lines of the configuration, by which a trial is known again."""
        return "".join(
            f"# {line}\n"
            for line in (
                "Written by `shadowspec try`: a trial of one recording.  The same command continues it.",
                f"target: {self.target or 'on the servers'}",
                f"draft: {self.draft or 'none'}",
                f"traffic: {self.traffic} (sha256 {self.traffic_digest[:16]})",
                *([] if self.field_map is None else [f"map: {self.field_map}"]),
                *([] if self.trace is None else [f"arrivals: {self.trace.path} (sha256 {self.trace.digest[:16]})"]),
                f"models: {', '.join(map(json.dumps, self.served_models))}",
                f"serving engine: {self.serving_engine}, load: {self.concurrency}",
                *([] if self.servers is None else [f"servers: {self.servers.text}"]),
            )
        )

    @property
    def endpoint(self) -> str:
        """The endpoint's name: the model's, as far as names may hold it."""
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.served_models[0].rpartition("/")[2]).lstrip("_.-")
        return plain[:LONGEST_NAME] or "endpoint"

    @property
    def proposers(self) -> tuple[str, ...]:
        """What drafts in this process: lookups always, the draft model where there is one."""
        return ("ngram", "suffix", *(("draft_model",) if self.draft is not None else ()))

    @property
    def num_candidates(self) -> int:
        return len(self.proposers) if self.servers is None else len(self.servers.candidates)


def config_text(
    inputs: TrialInputs,
    out: Path,
    slicing: Slicing,
    timed_positions: int,
    max_new_tokens: int | None,
    gaps: Sequence[str] = (),
) -> str:
    """The configuration of a trial whose results lie in the folder `out` (absolute); `gaps` are the records'."""
    assert inputs.traffic is not None, "a trial is of a recording"
    database = out / DATABASE
    num_hypotheses = inputs.num_candidates * (slicing.num_slices + 1 if slicing.is_divided else 1)
    cut_note = "" if max_new_tokens is None else (
        f" Outputs are cut at {max_new_tokens} tokens, so that prefill, which speculation does not shorten, has a "
        "larger share of the time than in whole outputs."
    )  # fmt: skip
    gap_note = "".join(f" {sentence(gap)}" for gap in gaps)
    cap = () if max_new_tokens is None else (
        "# Outputs are cut here, so that a block takes seconds on this device; remove it for a trial of whole outputs.",
        f"max_new_tokens = {max_new_tokens}",
    )  # fmt: skip
    lines = (
        "",
        "[database]",
        f"url = {_text(f'sqlite:///{database.as_posix()}')}",
        "",
        "[privacy]",
        f"hash_secret_file = {_text(str(out / SECRET))}",
        "",
        "[dashboard]",
        f"data_note = {_text(f'A recording: {inputs.traffic.name}.{gap_note}{cut_note}')}",
        "",
        "[gate]",
        "# A trial policy: verdicts speak of this recording only; `export` and `check` refuse them.",
        "recording_only = true",
        f"max_hypotheses = {num_hypotheses}",
        "# Sessions of this recording have this number of requests; the timed one is drawn from these.",
        f"timed_positions = {timed_positions}",
        "",
        f"[endpoints.{_key(inputs.endpoint)}]",
        *_target(inputs),
        f"served_models = [{', '.join(map(_text, inputs.served_models))}]",
        "# Every record; those of other models count as unsupported.",
        "match = {}",
        f"slice_by = [{', '.join(map(_text, slicing.slice_by))}]",
        f"serving_engine = {_text(inputs.serving_engine)}",
        f"loads = [{{ concurrency = {inputs.concurrency}, share = 1.0 }}]",
        *cap,
        *_candidates(inputs),
    )
    return inputs.header + "\n".join(lines) + "\n"


def starting_config(inputs: TrialInputs, slicing: Slicing | None, database: Path, secret: Path) -> str:
    """A configuration to begin production from, in at most 15 lines; every key that it lacks has its default.

    Through servers there are more: each of them has a table.  `slicing` is None where no recording was read.
    """
    names = inputs.served_models
    lines = (
        "[database]",
        f"url = {_text(f'sqlite:///{database.as_posix()}')}",
        "[privacy]",
        f"hash_secret_file = {_text(str(secret))}",
        f"[endpoints.{_key(inputs.endpoint)}]",
        *_target(inputs),
        f"served_models = [{', '.join(map(_text, names))}]",
        f"match = {{ model = {_text(names[0])} }}" if len(names) == 1 else "match = {}",
        *((f"slice_by = [{', '.join(map(_text, slicing.slice_by))}]",) if slicing and slicing.is_divided else ()),
        f"serving_engine = {_text(inputs.serving_engine)}",
    )
    if inputs.servers is not None:
        return "\n".join((*lines, *_candidates(inputs))) + "\n"
    tables = (f"    {{ {', '.join(_keys_of_candidate(inputs, proposer))} }}," for proposer in inputs.proposers)
    return "\n".join((*lines, "candidates = [", *tables, "]")) + "\n"


def write_secret(path: Path) -> None:
    """Write a new secret that only the user may read; an existing one stays.

    Raises:
        InputError: the place cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        if path.parent.is_dir():
            return
        raise InputError(f"{path.parent}: is a file; give another folder") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give another folder") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(os.urandom(SECRET_BYTES)) + b"\n")


def _target(inputs: TrialInputs) -> Sequence[str]:
    return () if inputs.target is None else (f"target = {_text(str(inputs.target))}",)


def _candidates(inputs: TrialInputs) -> Sequence[str]:
    """The tables of the candidates, and of the servers where they measure."""
    place, servers = f"endpoints.{_key(inputs.endpoint)}", inputs.servers
    if servers is None:
        tables = [_keys_of_candidate(inputs, proposer) for proposer in inputs.proposers]
        return [line for keys in tables for line in ("", f"[[{place}.candidates]]", *keys)]
    length = () if servers.max_model_len is None else (f"max_model_len = {servers.max_model_len}",)
    return (
        'engine = "openai"',
        "",
        f"[{place}.servers]",
        f"baseline_url = {_text(servers.baseline_url)}",
        f"model = {_text(servers.model)}",
        f'device = "{UNSTATED}"  # name the hardware: it is part of the fingerprint',
        f'dtype = "{servers.dtype}"' + ("" if servers.has_dtype else "  # stated nowhere: correct it too"),
        *length,
        *(line for candidate in servers.candidates for line in _served_candidate(place, candidate)),
    )


def _served_candidate(place: str, candidate: TrialCandidate) -> Sequence[str]:
    return (
        "",
        f"[[{place}.servers.speculative]]",
        f"candidate = {_text(candidate.name)}",
        f"url = {_text(candidate.url)}",
        f"[[{place}.candidates]]",
        f"name = {_text(candidate.name)}",
        f"method = {_text(candidate.method)}",
        f"num_speculative_tokens = {candidate.num_speculative_tokens}",
    )


def _keys_of_candidate(inputs: TrialInputs, proposer: str) -> Sequence[str]:
    num_tokens = NUM_TOKENS[proposer]
    name = "draft" if proposer == "draft_model" else proposer
    return (
        f'name = "{name}-k{num_tokens}"',
        f'proposer = "{proposer}"',
        *((f"draft = {_text(str(inputs.draft))}",) if proposer == "draft_model" else ()),
        f"num_speculative_tokens = {num_tokens}",
    )


def _key(name: str) -> str:
    return _text(name) if "." in name else name


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
