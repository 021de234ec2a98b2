"""From model folders and a recording to a configuration that can be measured; no weights are loaded."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from shadowspec.app.before_loading import load_served_tokenizer
from shadowspec.app.try_out.configuration import (
    CONFIG,
    DATABASE,
    DEFAULT_LOAD,
    SECRET,
    TrialInputs,
    config_text,
    write_secret,
)
from shadowspec.app.try_out.sample import Sample, read_sample, served_models
from shadowspec.app.try_out.survey import Slicing, Survey, survey_sample
from shadowspec.app.try_out.trial_servers import TrialServers, TrialUrls, look_at_servers
from shadowspec.config import Config, load_config, served_sampling
from shadowspec.errors import InputError, UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.required_tests import min_clusters
from shadowspec.gate.verdict.trial_levels import first_level
from shadowspec.model_folder import TargetTokenizer, require_model_folder
from shadowspec.servers.engines import prompt_rules_of
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.formats import FieldMap, MessageFormat
from shadowspec.tap.load_trace import LoadTrace
from shadowspec.tap.reading import NoTokenizer, Tokenizer
from shadowspec.text import write_whole
from shadowspec.types import SamplingRegime


@dataclass(frozen=True, slots=True)
class PreparedTrial:
    """A trial that is ready to be measured; `others` counts records of other models by their name."""

    inputs: TrialInputs
    out: Path  # absolute
    sample: Sample
    survey: Survey
    slicing: Slicing
    others: Counter[str]
    config: Config

    @property
    def config_path(self) -> Path:
        return self.out / CONFIG

    @property
    def rule(self) -> EndpointRule:
        return self.config.endpoints[self.inputs.endpoint].rule

    @property
    def num_timed(self) -> float:
        """Requests of the whole recording that will be measured, as expected."""
        return self.survey.num_timed(self.rule.timed_positions)

    @property
    def min_timed(self) -> int:
        """The smallest number of measured requests with which ENABLE is possible, one of each session."""
        endpoint = self.config.endpoints[self.inputs.endpoint]
        labels = {request.labels["sampling_regime"] for request in self.survey.requests}
        regimes = {"greedy" if label == SamplingRegime.GREEDY else "sampled" for label in labels}
        if self.inputs.servers is not None and any(request.is_chat for request in self.survey.requests):
            regimes.add("chat")
        return min_clusters(
            endpoint.policy,
            first_level(endpoint.policy, len(endpoint.candidates)),
            self.rule.places(self.inputs.concurrency),
            regimes,
        )

    @property
    def min_sessions(self) -> int:
        """The sessions of a recording like this one of which `min_timed` requests are expected to be measured."""
        num_sessions = len(self.survey.sessions) * self.survey.scale
        return math.ceil(self.min_timed * num_sessions / self.num_timed)


def prepare(
    target: Path | None,
    traffic: str,
    draft: Path | None,
    out: Path,
    *,
    models: Sequence[str],
    serving_engine: str | None,
    concurrency: int,
    field_map: FieldMap | None = None,
    trace: LoadTrace | None = None,
    servers: TrialUrls | None = None,
) -> PreparedTrial:
    """Check every input, infer the configuration and write it with a secret; one that is there is taken up.

    `servers` are those through which the trial is measured; they name the serving engine themselves, and need no
    `target`.

    Raises:
        ServerError: a server cannot be reached, or gives no usable answer.
        UsageError: the folder holds another trial, or options contradict each other.
        InputError: a file or folder cannot be read, used or written.
        NoDataError: no request of the traffic can be measured.
    """
    inputs, sample, others = infer_inputs(
        target,
        traffic,
        draft,
        models=models,
        serving_engine=serving_engine or "",
        concurrency=concurrency,
        field_map=field_map,
        trace=trace,
        needs_weights=servers is None,
    )
    if servers is not None:
        inputs = _with_servers(inputs, servers, models, serving_engine)
    out = out.resolve()
    is_taken_up = _is_taken_up(inputs, out)
    survey = survey_inputs(inputs, sample)
    slicing = survey.slicing()
    if not is_taken_up:
        write_secret(out / SECRET)
        write_config(inputs, out, survey, slicing, max_new_tokens=None, gaps=sample.gaps)
    config = replace(load_config(out / CONFIG, environment={}), given_format=field_map, given_arrivals=trace)
    endpoint = config.endpoints.get(inputs.endpoint)
    if endpoint is None or (endpoint.servers is None) != (inputs.servers is None):
        raise UsageError(
            f"{out / CONFIG}: was edited and has no endpoint {inputs.endpoint!r} that is measured as this trial; "
            "use it with `shadowspec run --config`, or give another folder with --out"
        )
    if inputs.servers is not None and inputs.servers.started and endpoint.servers is not None:
        servers_now = _at(endpoint.servers, inputs.servers)
        moved = {inputs.endpoint: replace(endpoint, servers=servers_now)}
        config = replace(config, endpoints={**config.endpoints, **moved})
    return PreparedTrial(inputs, out, sample, survey, slicing, others, config)


def _at(settings: ServerSettings, servers: TrialServers) -> ServerSettings:
    """The settings of servers that the trial has started again, which have other addresses now."""
    placed = zip(settings.speculative, servers.candidates, strict=True)
    speculative = tuple(replace(server, url=candidate.url) for server, candidate in placed)
    return replace(settings, baseline_url=servers.baseline_url, speculative=speculative)


def infer_inputs(
    target: Path | None,
    traffic: str,
    draft: Path | None,
    *,
    models: Sequence[str],
    serving_engine: str,
    concurrency: int,
    field_map: FieldMap | None = None,
    trace: LoadTrace | None = None,
    needs_weights: bool = True,
) -> tuple[TrialInputs, Sample, Counter[str]]:
    """Check folders and traffic, and infer the names under which the target is served; the counts are of other models.

    Through servers the target's folder holds a tokenizer (`needs_weights` is False), or there is none.

    Raises:
        UsageError: options contradict each other.
        InputError: a file or folder cannot be read or used.
        NoDataError: the traffic holds no record.
    """
    if target is not None:
        require_model_folder(f"--target {target}", target, needs_weights=needs_weights)
    if draft is not None:
        require_model_folder(f"--draft {draft}", draft)
        if target is not None and draft.resolve() == target.resolve():
            raise UsageError(f"--draft {draft}: is the target; give a smaller model, or leave it out")
    sample = read_sample(traffic, field_map or MessageFormat.AUTO, trace)
    served = served_models(sample, models)
    inputs = TrialInputs(
        target=None if target is None else target.resolve(),
        draft=None if draft is None else draft.resolve(),
        traffic=Path(traffic).resolve(),
        traffic_digest=sample.digest,
        served_models=served.names,
        serving_engine=serving_engine,
        concurrency=concurrency,
        field_map=field_map,
        trace=trace,
    )
    return inputs, sample, served.others


def infer_served(
    baseline: str,
    speculative: Sequence[str],
    target: Path | None,
    traffic: str | None,
    models: Sequence[str],
    serving_engine: str | None,
    field_map: FieldMap | None = None,
) -> tuple[TrialInputs, Sample | None, Counter[str]]:
    """The inputs of a configuration by what servers say of themselves, and by a recording if there is one.

    Raises:
        UsageError, InputError, NoDataError: as `infer_inputs`.
        ServerError, ModelError: as `look_at_servers`.
    """
    sample, others = None, Counter[str]()
    if traffic is not None:
        inputs, sample, others = infer_inputs(
            target,
            traffic,
            None,
            models=models,
            serving_engine="",
            concurrency=DEFAULT_LOAD,
            field_map=field_map,
            needs_weights=False,
        )
    else:
        if target is not None:
            require_model_folder(f"--target {target}", target, needs_weights=False)
        folder = None if target is None else target.resolve()
        inputs = TrialInputs(folder, None, None, "", tuple(models), "", DEFAULT_LOAD)
    return _with_servers(inputs, TrialUrls(baseline, speculative), models, serving_engine), sample, others


def _with_servers(
    inputs: TrialInputs, servers: TrialUrls, models: Sequence[str], serving_engine: str | None
) -> TrialInputs:
    """The inputs with what the servers say of themselves; `serving_engine` is as it was given, if it was."""
    served = look_at_servers(servers, inputs.target, None if servers.started or not models else models[0])
    names = inputs.served_models or (served.model,)
    return replace(inputs, served_models=names, serving_engine=serving_engine or served.engine, servers=served)


def write_config(
    inputs: TrialInputs,
    out: Path,
    survey: Survey,
    slicing: Slicing,
    *,
    max_new_tokens: int | None,
    gaps: Sequence[str] = (),
) -> None:
    """Write the configuration.

    Raises:
        InputError: the place cannot be written to.
    """
    try:
        write_whole(
            out / CONFIG,
            config_text(inputs, out, slicing, survey.timed_positions, max_new_tokens, gaps),
        )
    except OSError as error:
        raise InputError(f"{out / CONFIG}: cannot be written ({error.strerror})") from error


def _is_taken_up(inputs: TrialInputs, out: Path) -> bool:
    """Whether the folder holds this trial already.

    Raises:
        UsageError: it holds another one, or a database or configuration of something else.
    """
    path = out / CONFIG
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: is a file; give a folder")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    if text.startswith(inputs.header):
        return True
    if text or (out / DATABASE).exists():
        old = zip(text.splitlines(), inputs.header.splitlines(), strict=False)
        line = next((before.removeprefix("# ") for before, now in old if before != now), "another configuration")
        raise UsageError(f"--out {out}: holds another trial ({line}); give another folder with --out, or delete it")
    return False


def _model_tokenizer(inputs: TrialInputs) -> TargetTokenizer:
    """The target's tokenizer, where this process measures: its draft has the same one."""
    assert inputs.target is not None, "this process measures folders"
    from shadowspec.engine.models import refuse_unmeasurable
    from shadowspec.engine.tokenizer import FolderTokenizer, check_tokenizers, load_tokenizer
    from shadowspec.engine.tokenizer import load_config as load_model_config

    def tokenizer_of(path: Path) -> FolderTokenizer:
        refuse_unmeasurable(load_model_config(str(path)), str(path))
        return load_tokenizer(str(path))

    tokenizer = tokenizer_of(inputs.target)
    if inputs.draft is not None:
        check_tokenizers(str(inputs.target), tokenizer, str(inputs.draft), tokenizer_of(inputs.draft))
    return tokenizer


def survey_inputs(inputs: TrialInputs, sample: Sample) -> Survey:
    """Read the sample with the target's tokenizer; where this process measures, the folders are checked first.

    Raises:
        ModelError: the target cannot be measured, or the draft cannot draft for it.
        NoDataError: no request can be measured.
    """
    tokenizer: Tokenizer
    if inputs.servers is None:
        tokenizer = _model_tokenizer(inputs)
    elif inputs.target is None:
        tokenizer = NoTokenizer()  # the server is asked where requests are measured: here it would take a minute
    else:
        tokenizer = load_served_tokenizer(str(inputs.target))
    rule = EndpointRule(
        name=inputs.endpoint,
        served_models=inputs.served_models,
        match=MatchRule(),
        loads=(Load(inputs.concurrency),),
        default_sampling=served_sampling(inputs.target, inputs.serving_engine, configured={}).defaults,
        prompt_rules=prompt_rules_of(inputs.serving_engine),
        takes_chats=inputs.servers is not None,
        takes_constraints=inputs.servers is not None,
        **GatePolicy(recording_only=True).rule_parts(),
    )
    return survey_sample(sample, rule, tokenizer, os.urandom(32))
