"""The files that `shadowspec init` writes: every key, with its default and what it means.

A default is written in the types alone: "~" in a template is the default of its key, as its value or in its comment.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final
from zoneinfo import ZoneInfo

from shadowspec.config.dashboard_settings import DashboardSettings, RoleSettings
from shadowspec.config.sections import CandidateSection, DatabaseSection, EndpointSection, Section
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.scheduler.job_settings import EmailSettings, FolderSettings, JobSettings, LiveSettings, ScheduleSettings
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.types.constrained import keys_of
from shadowspec.types.engine_names import IN_PROCESS
from shadowspec.types.measuring_settings import EngineSettings, WorkerSettings

DEFAULT_POLICY_NAME: Final = "policy.toml"
LEAST_LIKENESS: Final = 0.65  # of difflib, from which on a known key is suggested

_CONFIG = """\
# ShadowSpec's configuration.  A key that is not known is an error.  Paths are relative to the working
# directory.  Lines that begin with "# " and a key show defaults; the others have to be made your own.

# What must be proven before speculation is recommended, in a file of its own (docs/policy.md); without this key the
# same keys stand here, in [gate] and [endpoints.NAME.gate].
policy = "policy.toml"

[database]
# SHADOWSPEC_DATABASE_URL overrides it.  Postgres: "postgresql+psycopg://user:password@host/database"
url = ~

[privacy]
# Session, user, tenant and request ids are stored only as HMAC-SHA256 under this secret (16 bytes or more).
# SHADOWSPEC_HASH_SECRET overrides it.  Make one with:  head -c 32 /dev/urandom | base64 > shadowspec.secret
# Another secret starts new sessions everywhere.
hash_secret_file = "shadowspec.secret"

# The mirror that `shadowspec worker` consumes.
# [kafka]
# bootstrap_servers = ["localhost:9092"]
# topics = ["shadow.prompts"]
# retry_topics = ["shadow.retry"]  # consumed too; where `dead-letters replay` may put records back
# dead_letter_topic = ~                      # must be there: the worker stops rather than drop a record
# group_id = ~             # also the name under which the database counts; workers that share it share the work
# group_instance_id = "shadow-0"  # a name of this worker's own: it may restart within session_timeout_ms unnoticed
# format = ~               # "openai", "litellm", "cloudevents", "kong"; "auto" tells them apart
# session_from = ~         # or "key", "header:NAME": a session that is not sampled is then dropped undecoded,
# endpoint_from = ~        # if the endpoint too stands outside: "topic" (its name is the endpoint's), "header:NAME"
# auto_offset_reset = ~           # where a partition begins that was never consumed; or "latest"
# session_timeout_ms = ~
# heartbeat_interval_ms = ~
# max_poll_interval_ms = ~
# max_poll_records = ~
# connect_timeout_ms = ~
# max_record_bytes = ~
# To encrypt and to log in; SHADOWSPEC_KAFKA_PASSWORD overrides password_file.
# security_protocol = "SASL_SSL"  # default: ~; "SSL", "SASL_PLAINTEXT"
# sasl_mechanism = "SCRAM-SHA-512"  # "SCRAM-SHA-256", "PLAIN"
# username = "shadowspec"
# password_file = "kafka.password"
# ssl_ca_file = "kafka-ca.pem"  # default: the system's authorities
# ssl_certificate_file = "client.pem"  # with ssl_key_file, where the brokers want a certificate
# ssl_key_file = "client.key"

[engine]
# device = ~            # "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"
# dtype = ~             # "auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16", "float16", "int8" (CPU)
# passes = ~            # "graphs": steps as CUDA graphs, not tried on a GPU yet; "auto": graphs where they can be
# kernels = ~           # "triton" (docs/kernels.md), not tried on a GPU yet; "auto": Triton's where a GPU can run them
# seed = ~              # of requests that bring none
# warmup_blocks = ~     # run and thrown away before the first block that counts
# audit_share = ~       # of the measured requests: their outputs are replayed, and compared with what the loop counted

[worker]
# devices = ~              # an engine process on each, e.g. ["cuda:0", "cuda:1"]; default: one on the engine's device
# max_queued_blocks = ~    # in front of the engine; then the overload rule applies
# overload = ~             # the partitions; "shed": requests, counted as such
# build_timeout_s = ~      # to load the models; an engine that takes longer is ended, and at its first start the worker
# block_timeout_s = ~      # an engine that takes longer is ended, and the block's requests fail
# max_attempts = ~         # at a request that ends the engine
# max_unfinished_messages = ~      # consumed, but not yet measured and written
# flush_interval_s = ~     # between two writes to the database
# refresh_rates_s = ~      # between two looks at the decisions, which set the sampling rates
# drain_timeout_s = ~      # to finish what is begun, when asked to stop
# health_address = ~                 # of /livez, /readyz and /metrics

[dashboard]
# host = ~               # whoever can reach it sees every figure
# port = ~
# title = ~
# refresh_s = ~          # how often an open page looks for news
# stale_after_s = ~           # without a new measurement, evidence is said to be stale
# price_per_gpu_hour = 2.5    # in the currency; default: the policy's device_price_per_hour, else no cost is shown
# currency = ~
# data_note = "Mirror of the production gateway"  # what the data is and is not, said on every page and report
# auth_file = "/run/secrets/dashboard.toml"       # login by OpenID Connect; see docs/dashboard.md
# local_role = ~              # without a login: "operator" lets whoever reaches the address use the kill switch
# override_url = "postgresql+psycopg://operator@db/shadowspec"  # the kill switch's own role

# [dashboard.roles]
# claim = ~                   # of the login; or one that lists groups
# operators = ["on-call@example.com"]    # may use the kill switch
# viewers = ["team@example.com"]         # may look; without it whoever logs in

# Gate runs and reports at set times, by `shadowspec schedule` (docs/schedule.md).
[schedule]
# time_zone = ~          # of jobs that name none, and of dates without an offset
# catch_up = ~           # missed periods of a job that get a report each; the first of them has what lies before
# max_attempts = ~       # at a delivery, before it is given up
# retry_first_s = ~      # after the first failure; doubled each time
# retry_longest_s = ~
# timeout_s = ~          # that a receiver may take to answer

# [schedule.jobs.daily]
# cron = "0 8 * * *"     # minute, hour, day, month, day of the week (0 and 7: Sunday); or six, with the second first
# time_zone = "Europe/Berlin"  # default: the schedule's
# does = ["gate", "report"]    # default: ~
# receivers = ["archive", "team", "chat"]

# [schedule.receivers.archive]
# kind = "folder"
# folder = "reports"
# formats = ["html", "json"]   # default: ~; and "md"

# [schedule.receivers.team]
# kind = ~
# host = "mail.example.com"
# port = 587                   # default: the usual one for security
# security = ~                 # default; "tls", "none"
# username = "shadowspec"
# password_variable = "MAIL_PASSWORD"  # or password_file; read whenever a mail is sent
# ca_file = "mail-ca.pem"      # default: the system's authorities
# sender = "shadowspec@example.com"
# to = ["llm-platform@example.com"]

# [schedule.receivers.chat]
# kind = "webhook"
# url_file = "chat.url"        # or url_variable: the URL is a secret; slack://, workflows:// (Teams), jsons:// ...

[endpoints.chat]
# Path or id of the model that serves this endpoint, and the names under which it is served.
target = "models/target"
served_models = ["my-model"]
# Globs on what a record says of itself; all that are given must match.  The first endpoint that matches
# takes the record.  Without `match` it is a record whose "endpoint" is this endpoint's name.
match = { model = "my-model", path = "/v1/*" }
# Labels that make hypotheses, of: prompt_class, sampling_regime, context_bucket, tenant, output_constraint, language,
# and your own.
# slice_by = ~
# labels = ["tier"]     # keys of the record's metadata that are kept as labels
# sample_rate = ~       # share of sessions (per slice) that may be measured
# Concurrency to measure at; shares weigh several, e.g. the shares of time spent at each.
loads = [{ concurrency = 4, share = 1.0 }]
# Requests of a block for each slot of its load.  1: one batch, in which a finished request's slot idles along; 4: a
# queue whose next request takes the slot that is free, so that as many requests as the load are in progress.
# requests_per_slot = ~
# What serves this endpoint, by name or by name and version: "vllm", "vllm 0.32", "sglang", "llama.cpp".  Verdicts that
# rest on latency are for it, and are made of what was measured on it alone (docs/policy.md, Which engine serves):
# through servers (docs/servers.md), or for "shadowspec-torch" by the engine in this process.  Candidates draft by
# its rules, as far as they are known (docs/engine.md).
serving_engine = @
# max_age_s = 3600.0    # older records are expired (against the newest event time); default: none are
# scores = ["json_valid", "package.module:function"]  # of both arms' outputs, for guardrails: docs/guardrails.md
# contract = "sql"      # what outputs have to be: "json", "tool_call", "sql" (extra `sql`); by class
#                       # of prompts: { structured = "sql" }; default: what a request asks for: docs/failures.md
# sql_dialect = "postgres"   # sqlglot's name of it; default: whatever it reads
# max_new_tokens = 256  # cap on the tokens generated per request; default: the request's own max_tokens

# What the server uses where a request is silent; part of the fingerprint.  No generation_config.json is read for it:
# copy what production takes from there.
# [endpoints.chat.default_sampling]
# temperature = 0.7
# top_p = 0.8

[[endpoints.chat.candidates]]
name = "draft-k4"
proposer = "draft_model"     # or "ngram", "suffix", which need no draft; "medusa", "mlp_speculator", "eagle3": below
draft = "models/draft"
num_speculative_tokens = 4
#                            # a draft of another vocabulary: "heterogeneous_draft_model" (docs/engine.md)
# verify_rule = "rejection"  # draft_model: rejection, greedy_draft, exact_match; heads and drafts of another
#                            vocabulary: all three, by default greedy_draft; the others: greedy_draft, exact_match
# draft_confidence_threshold = ~    # above it, e.g. 0.4: a row drafts no token that the draft model gives less
# draft_sampling = "request" # or "temperature": what of a request's sampling the draft follows; the target follows all.
#                            # Default: as the endpoint's serving_engine does (vLLM: temperature), else request

# [[endpoints.chat.candidates]]
# name = "ngram-k4"
# proposer = "ngram"
# num_speculative_tokens = 4
# ngram_min = ~              # shortest suffix that is looked up in the text so far
# ngram_max = ~
# ngram_occurrence = "latest"  # or "earliest", "latest_followed": which of several occurrences is copied from.
#                            # Default: as the endpoint's serving_engine does (vLLM: earliest, llama.cpp:
#                            # latest_followed), else latest

# [[endpoints.chat.candidates]]
# name = "suffix-k8"
# proposer = "suffix"        # what followed in the text so far, and in recent outputs: docs/engine.md
# num_speculative_tokens = 8
# suffix_decoding_max_tree_depth = ~     # tokens of match and draft together
# suffix_decoding_max_spec_factor = ~    # drafted tokens for each matched one
# suffix_decoding_min_token_prob = ~     # how likely a draft must be, by its counts, up to its last token
# suffix_memory_tokens = ~               # of recent outputs of this endpoint; 0: the request alone

# What the endpoint's production engines count, read by `shadowspec live` and `shadowspec schedule`: docs/live.md
# [endpoints.chat.live]
# metrics_urls = ["http://engine-0:8000/metrics"]  # one per replica; no other host is contacted
# engine = ~                 # or "sglang", "tensorrt-llm", "llama.cpp"
# model = "my-model"         # the name under which they serve it; default: the first of served_models
# api_key_variable = "VLLM_API_KEY"  # variable of the environment that holds the key
# ca_file = "servers-ca.pem" # default: the system's authorities
# interval_s = ~             # between two readings of the scheduler: the guard's windows
# timeout_s = ~              # that a page may take
# scored_drafts = ~          # drafts with which a window weighs in full
# run_length = ~             # windows between two false alarms, on average, at least

# Heads that draft from the target's hidden states, as they are published (docs/engine.md, Heads).
# [[endpoints.chat.candidates]]
# name = "eagle-k4"
# proposer = "eagle3"        # or "medusa", "mlp_speculator", which draft at most one token per head
# draft = "models/eagle3"
# num_speculative_tokens = 4

# An endpoint may be measured through two deployments of its target behind the OpenAI API (docs/servers.md) instead of
# by the engine in this process.  It has one candidate then; `target` is its tokenizer's folder: no weights are loaded.
# [endpoints.served]
# engine = "openai"           # default: ~
# target = "models/target"
# served_models = ["served-model"]
# requests_per_slot = 1       # above 1 the load stays longer; so many times the requests for one block
# [endpoints.served.servers]
# baseline_url = "https://baseline.example:8000"        # roots, without /v1; no other host is contacted
# speculative_url = "https://speculative.example:8000"
# model = "served-model"      # the name under which both serve the target; default: the first of served_models
# device = "2x H100"          # what both run on, and in which dtype
# dtype = "bfloat16"
# api_key_variable = "VLLM_API_KEY"  # variable of the environment that holds the key
# ca_file = "servers-ca.pem"  # default: the system's authorities
# max_model_len = 8192        # tokens that both take; default: as many as the target
# connect_timeout_s = ~
# first_token_timeout_s = ~
# token_timeout_s = ~         # between two chunks with tokens
# total_timeout_s = ~
# max_attempts = ~            # at a request that was refused for now, or whose answer was cut off
# reachable_within_s = ~      # that a server may be away before a block; then the run ends
# prefix_cache = ~            # "on": whole conversations, each cold at first in both arms, warm later
# score_logprobs = ~          # likeliest tokens asked of the baseline per token of a sampled output (its --max-logprobs
#                             must allow it); more where top_k or a temperature near 1 wants it; 0: none is scored
# tool_call_format = "hermes" # how the target writes tool calls, so that strict ones can be asked for; default:
#                             requests with strict tools are refused
# [[endpoints.served.candidates]]
# name = "served-k4"          # what the speculative server does
# proposer = "draft_model"
# draft = "models/draft"
# num_speculative_tokens = 4
#                             any other method of the server goes by the server's name, in place of proposer, with what
#                             else the server was started with (docs/servers.md):
#                                 method = "mtp"
#                                 speculative_config = { draft_tensor_parallel_size = 1 }
"""


_POLICY = """\
# ShadowSpec's policy: what must be proven before speculation is recommended, and how it is rolled out.  Keep it
# in version control: a change of policy is reviewed like a change of code.  A key that is not known is an error.
# Lines that begin with "# " and a key show defaults.  Durations are seconds of event time, shares fractions of 1;
# "none" where a default may be absent.  [endpoints.NAME] and [endpoints.NAME.rollout] override key by key.

version = 1

[default]
# Errors and evidence
# alpha = ~                     # chance of any false ENABLE at an endpoint, however often one looks
# max_hypotheses = ~            # loads x candidates x (slices + 1): half of alpha is for the whole endpoint
# entry_clusters = ~            # closed sessions of a slice from which on its tests are read
# max_clusters = ~              # measured sessions after which an open question is given up as undecidable
# indifference = ~              # an interval this close about its limit is undecidable
# max_missing = ~               # share of failed and shed requests above which the verdict is HOLD
# min_span_s = ~                # event time, and as many days with evidence, that ENABLE needs: a week, a whole cycle
# recording_only = ~            # a trial: no span is needed, verdicts speak of this recording only, none is promoted
# max_evidence_age_s = ~        # HOLD if the newest evidence is older than this when the gate looks; none: of any age

# What must be proven
# margin = ~                    # speedup beyond 1
# require_mix_bound = ~         # the slices' bounds, weighted by the current mix, must prove it for the endpoint too
# log_speedup_clip = ~                   # a request counts as no more than so much faster or slower (log; twice)
# objective = ~                 # "both": a lower total time must be proven too
# acceptance_metric = ~                                 # or "draft_acceptance_rate": of all drafted tokens
# floor = ~                     # acceptance by that metric; 40% of drafted tokens is how route owners state it
# max_scored_steps = ~          # a session weighs no more than so many of the metric's denominator
# tail_margin = ~               # a request is slowed if it took this much longer ...
# tail_share = ~                # ... and at most this share may be
# max_fault_share = ~           # greedy outputs that differ from the target's own: none seen, and no more than this
# parity_margin = ~             # greedy outputs that differ by rounding, beyond the baseline's own
# near_tie_logit = ~            # top-2 gap up to which it is rounding; none: 0.001 in float32, 0.125 in bfloat16
# parity_tokens = ~             # a session weighs no more than so many sampled tokens
# z_clip = ~                    # and its sum of z is cut at this times so many
# z_bound = ~                   # the mean z of sampled outputs lies within plus or minus this
# memory_budget_share = ~       # extra peak memory, of the baseline's own; through servers: of its KV cache; or "none"
# memory_budget_tokens = ~      # KV-cache tokens that the draft may displace; both "none": memory is not judged
# require_serving_engine = ~    # latency counts from the endpoint's serving_engine alone, where one is named

# Guardrails: each is required where it is set
# ttft_margin = ~               # time to the first token may be longer by this
# tpot_margin = ~               # time per output token may be longer by this
# p95_margin = ~                # 95% quantile of end-to-end time may be longer by this
# p99_margin = ~
# max_cost_per_million_tokens = ~       # output tokens, in the currency of the price
# device_price_per_hour = ~
# validity_margin = ~           # share of valid structured outputs may be lower by this
# score_margin = ~              # mean of the user's score, from 0 to 1, may be lower by this

# After ENABLE
# drift_run_length = ~          # units between false alarms of an endpoint's detectors, on average, at least
# drift_tolerance = ~           # advisory detectors hold to the lower bound at ENABLE less this
# on_alarm = ~                  # or "hold": what becomes of ENABLE when a detector sounds
# mix_window_s = ~              # event time that counts as the current traffic: a whole cycle

# What is a unit of evidence
# max_requests_per_cluster = ~  # of a session
# cluster_idle_s = ~            # a session is over when it is idle for so long ...
# cluster_max_age_s = ~         # ... or this old ...
# cluster_reopen_after_s = ~        # ... and so much later its key is a new one
# time_block_s = ~              # requests without session or user are taken together by time
# dominant_key_share = ~        # a key above this share of its slice is cut into such times
# timed_positions = ~           # a session is timed at its J-th request, J drawn from 1 to this; prefix_cache: at each
# block_max_wait_s = ~          # event time after which a block that is not full runs short
# min_rate = ~                  # the worker's sampling rate for slices of which everything is decided

[default.rollout]
# partial_share = ~             # of the enabled traffic, in the partial stage
# shadow_soak_s = ~             # for which ENABLE must have stood before it
# partial_soak_s = ~            # for which it must have stood in it, before all is served with speculation
# min_soak_blocks = ~           # blocks newly measured in a stage before it is left: silence proves nothing
# max_decision_age_s = ~        # an older decision moves nothing forward
# max_disabled_share = ~        # a DISABLEd slice with so much of the traffic lets nothing move forward
# alarm_stage = ~               # where an alarm moves the rollout: one stage back, or to the "shadow"
# first_depth = ~               # the partial stage begins with the deepest proven depth up to this, else with the first
# depth_soak_s = ~              # for which ENABLE must have stood at a depth before the next
# partial_max_depth = ~         # below what is proven it keeps the endpoint in the shadow
# broad_max_depth = ~
# context_max_depths = ~        # by context bucket, e.g. { "32k-128k" = 2, "128k+" = 0 }; 0 is off

# [endpoints.chat]
# max_hypotheses = 4
# [endpoints.chat.rollout]
# partial_share = 0.05
"""

_TABLE = re.compile(r"^(?:# )?\[{1,2}([A-Za-z_.]+)\]{1,2}$")
_DEFAULTED = re.compile(r"^((?:# )?([a-z_0-9]+) = (?:.*# default: )?)(~ *)")


def config_template(policy: str = DEFAULT_POLICY_NAME, serving_engine: str = IN_PROCESS) -> str:
    """A commented configuration that parses as it stands beside a policy file and with the engine that it names."""
    sections: dict[str, type[Section]] = {
        "database": DatabaseSection,
        "endpoints.chat": EndpointSection,
        "endpoints.served": EndpointSection,
        "endpoints.chat.candidates": CandidateSection,
    }
    tables = {
        **{
            table: {key: model_field.default for key, model_field in kind.model_fields.items()}
            for table, kind in sections.items()
        },
        "kafka": keys_of(KafkaSettings),
        "engine": keys_of(EngineSettings),
        "worker": keys_of(WorkerSettings),
        "dashboard": keys_of(DashboardSettings),
        "dashboard.roles": keys_of(RoleSettings),
        "schedule": keys_of(ScheduleSettings),
        "schedule.jobs.daily": keys_of(JobSettings),
        "schedule.receivers.archive": keys_of(FolderSettings),
        "schedule.receivers.team": keys_of(EmailSettings),
        "endpoints.chat.live": keys_of(LiveSettings),
        "endpoints.served.servers": keys_of(ServerSettings),
    }
    written = _with_defaults(_CONFIG, tables).replace("serving_engine = @", f"serving_engine = {_text(serving_engine)}")
    return written.replace(f'"{DEFAULT_POLICY_NAME}"', _text(policy))


def filled_template(inferred: str, policy: str, serving_engine: str) -> str:
    """The commented configuration with the values of a short one, which has one endpoint."""
    values = tomllib.loads(inferred)
    ((name, endpoint),) = values["endpoints"].items()
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)
    match = ", ".join(f"{each} = {_text(glob)}" for each, glob in endpoint["match"].items())
    lines = {
        "url": _text(values["database"]["url"]),
        "hash_secret_file": _text(values["privacy"]["hash_secret_file"]),
        "target": _text(endpoint["target"]),
        "served_models": _toml(endpoint["served_models"]),
        "match": f"{{ {match} }}" if match else "{}",
    }
    if "slice_by" in endpoint:
        lines["# slice_by"] = _toml(endpoint["slice_by"])
    candidates = (
        "\n".join(
            (f"[[endpoints.{key}.candidates]]", *(f"{each} = {_toml(value)}" for each, value in candidate.items()), "")
        )
        for candidate in endpoint["candidates"]
    )
    written = config_template(policy, serving_engine)
    head, example, rest = re.split(r"(\[\[endpoints\.chat\.candidates\]\]\n(?:\w+ = [^\n]*\n)+)", written, maxsplit=1)
    assert example, "the template has a candidate"
    for each, value in lines.items():
        plain = each.removeprefix("# ")
        head = re.sub(rf"^{re.escape(each)} = .*$", lambda _, p=plain, v=value: f"{p} = {v}", head, count=1, flags=re.M)
    return (head + "\n".join(candidates) + rest).replace("endpoints.chat", f"endpoints.{key}")


def policy_template() -> str:
    """A commented policy that parses as it stands."""
    return _with_defaults(_POLICY, {"default": asdict(GatePolicy()), "default.rollout": asdict(RolloutPolicy())})


def suggestion(name: str, known: Iterable[str] = ()) -> str:
    """The end of a message about a key or table that is not known: the one most like it of those known, if any is.

    Args:
        known: default: every key and table of the configuration and the policy.
    """
    written = re.findall(r"^(?:# )?(\w+) = |^(?:# )?\[+([\w.]+)\]+$", _CONFIG + _POLICY, re.MULTILINE)
    names = set(known) or {part for key, table in written for part in (key, *table.split(".")) if part}
    close = difflib.get_close_matches(name, names - {name}, 1, LEAST_LIKENESS)
    return f"; did you mean {close[0]}?" if close else ""


def parameter_meanings() -> dict[str, str]:
    """What each parameter of the policy means, by name, in the words of the template."""
    found = re.findall(r"^# ([a-z_0-9]+) = (?:\{.*?\}|\S+) +# (.+)$", _POLICY, re.MULTILINE)
    return {name: text.strip(" .") for name, text in found}


def _with_defaults(template: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The template with each key's default, as wide as the "~" and the blanks behind it: comments stay in line."""
    lines, table = [], ""
    for line in template.splitlines():
        if header := _TABLE.match(line):
            table = header[1]
        elif found := _DEFAULTED.match(line):
            start, key, gap = found.groups()
            line = start + _toml(tables[table][key]).ljust(len(gap)) + line[found.end() :]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _toml(value: Any) -> str:
    """A default as TOML has it; "none" where a policy has no limit."""
    if isinstance(value, ZoneInfo):
        return f'"{value.key}"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{name}" = {_toml(item)}' for name, item in value.items()) + "}"
    return '"none"' if value is None else json.dumps(value)
