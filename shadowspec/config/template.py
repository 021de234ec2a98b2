"""The files that `shadowspec init` writes: every key, with its default and what it means.

A default is written only in the types: "~" in a template is the default of its key, as its value or in its comment.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final
from zoneinfo import ZoneInfo

from shadowspec.config.dashboard_settings import DashboardSettings, RoleSettings
from shadowspec.config.sections import CandidateSection, ConfigSection, DatabaseSection, EndpointSection
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.export.routes import Pools
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.scheduler.job_settings import EmailSettings, FolderSettings, JobSettings, LiveSettings, ScheduleSettings
from shadowspec.scheduler.target_settings import ConfigMapTarget, FileTarget, GitTarget, HttpTarget
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.text import suggestion
from shadowspec.types.serving_engines import IN_PROCESS
from shadowspec.types.settings import EngineSettings, WorkerSettings, keys_of

DEFAULT_POLICY_NAME: Final = "policy.toml"

_CONFIG = """\
# ShadowSpec's configuration.  An unknown key is an error.  Paths are relative to the working directory.
# Lines that begin with "# " and a key show defaults.  Replace the other values by yours.

# The policy file: the proof that a recommendation of speculation needs (docs/policy.md).  Without this key the same
# keys belong in [gate] and [endpoints.NAME.gate].
policy = "policy.toml"

[database]
# URL of SQLAlchemy.  Postgres: "postgresql+psycopg://user:password@host/database".  SHADOWSPEC_DATABASE_URL overrides
# it.
url = ~

[privacy]
# File with a secret of 16 bytes or more: `head -c 32 /dev/urandom | base64 > shadowspec.secret`.  Ids of sessions,
# users, tenants and requests are stored only as HMAC-SHA256 under it.  SHADOWSPEC_HASH_SECRET overrides it.  A new
# secret makes every session a new one.
hash_secret_file = "shadowspec.secret"
# File with the secret before it: sessions that are stored under that one keep their identity.
# SHADOWSPEC_HASH_SECRET_PREVIOUS overrides it.
# hash_secret_previous_file = "previous.secret"

# The mirror that `shadowspec worker` consumes.
# [kafka]
# bootstrap_servers = ["localhost:9092"]  # brokers to connect to first
# topics = ["shadow.prompts"]  # the mirror
# retry_topics = ["shadow.retry"]  # consumed like the mirror; `dead-letters replay` may put records there
# dead_letter_topic = ~                      # must exist: the worker stops rather than drop a record
# group_id = ~             # consumer group, and its name in the database; workers that share it share the partitions
# group_instance_id = "shadow-0"  # static member: it may restart within session_timeout_ms without a rebalance
# format = ~               # format of messages (docs/formats.md); "auto" recognises it
# map = { request = "body", time = "ts" }   # in place of a format: where messages have the parts of a record
# session_from = ~         # where the session is: the body, "key" or "header:NAME".  Outside of the body, a session
#                            that is not sampled is dropped without decoding, if endpoint_from is outside too
# endpoint_from = ~        # where the endpoint's name is: the body, "topic" (the topic's name) or "header:NAME"
# auto_offset_reset = ~           # where a partition starts that was never consumed
# session_timeout_ms = ~       # Kafka's session.timeout.ms
# heartbeat_interval_ms = ~    # Kafka's heartbeat.interval.ms
# max_poll_interval_ms = ~      # Kafka's max.poll.interval.ms
# max_poll_records = ~         # Kafka's max.poll.records
# connect_timeout_ms = ~       # wait for a broker, before the worker gives up
# max_record_bytes = ~         # a longer message is malformed: too_large
# security_protocol = "SASL_SSL"  # encryption and login; default: ~
# sasl_mechanism = "SCRAM-SHA-512"  # how to log in
# username = "shadowspec"      # of the login
# password_file = "kafka.password"  # file with the password; SHADOWSPEC_KAFKA_PASSWORD overrides it
# ssl_ca_file = "kafka-ca.pem"  # certificate authorities; default: the system's
# ssl_certificate_file = "client.pem"  # client certificate, where the brokers ask for one; with ssl_key_file
# ssl_key_file = "client.key"  # key of the client certificate

# The engine in this process.
[engine]
# device = ~              # "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"
# dtype = ~               # "auto": bfloat16 on a GPU, float32 on a CPU; "int8" only on a CPU
# passes = ~              # "auto": CUDA graphs of the steps on a GPU; "graphs": an error without them; "dynamic": none
# kernels = ~             # "auto": Triton's where a GPU can run them (docs/kernels.md); "triton": an error without them
# share_prefixes = ~      # compute a prefix that prompts of a block share once, as a prefix cache does; in both arms
# seed = ~                # of requests without a seed
# warmup_blocks = ~       # blocks that run before the first one that counts
# pause_s = ~             # seconds in which the device idles before each timed arm (docs/reading-a-hold.md: carry_over)
# audit_share = ~         # share of the measured requests whose outputs are replayed, to compare the engine's counts

# How `shadowspec worker` consumes the mirror and runs engines.
[worker]
# devices = ~              # one engine process on each, e.g. ["cuda:0", "cuda:1"]; default: one, on the engine's device
# max_queued_blocks = ~    # blocks that wait for an engine; above it the overload rule applies
# overload = ~             # "pause": stop polling until the engine catches up; "shed": drop and count requests
# build_timeout_s = ~      # to load the models; the worker stops if the first engine takes longer
# block_timeout_s = ~      # an engine that takes longer is ended, and the block's requests fail
# max_attempts = ~         # at a request that ends the engine
# max_unfinished_messages = ~      # consumed messages that are not measured and stored yet
# flush_interval_s = ~     # between two writes to the database
# refresh_rates_s = ~      # between two reads of the decisions, which set the sampling rates
# drain_timeout_s = ~      # to finish running blocks after a request to stop
# health_address = ~                 # of /livez, /readyz and /metrics (docs/metrics.md)

# The dashboard, and the costs in reports (docs/dashboard.md).
[dashboard]
# host = ~               # address to listen on; without a login anyone who reaches it sees all data
# port = ~               # port to listen on
# public_url = "https://shadowspec.example.com"  # address under which people open it; reports link to it
# title = ~              # of every page
# refresh_s = ~          # between two refreshes of an open page
# stale_after_s = ~           # evidence without a new measurement for this long is shown as stale
# price_per_gpu_hour = 2.5    # in the currency; default: the policy's device_price_per_hour, else no cost is shown
# currency = ~                # of the price
# data_note = "Mirror of the production gateway"  # note about the data on every page and report
# auth_file = "/run/secrets/dashboard.toml"       # settings of a login by OpenID Connect (docs/dashboard.md)
# local_role = ~              # of everyone, where there is no login; "operator" may use the kill switch
# override_url = "postgresql+psycopg://operator@db/shadowspec"  # database URL of the kill switch; default: [database]

# Permissions after a login (docs/dashboard.md).
# [dashboard.roles]
# claim = ~                   # claim of the login that operators and viewers are compared with; it may list groups
# operators = ["on-call@example.com"]    # may use the kill switch
# viewers = ["team@example.com"]         # may look; default: everyone who logs in

# Gate runs and reports at set times, by `shadowspec schedule` (docs/schedule.md).
[schedule]
# time_zone = ~          # of jobs without a time zone, and of dates without an offset
# catch_up = ~           # missed periods of a job that get a report each; the first one covers all before it
# max_attempts = ~       # at a delivery
# retry_first_s = ~      # wait after the first failed attempt; it doubles each time
# retry_longest_s = ~      # longest wait between two attempts
# timeout_s = ~          # for a receiver's answer
# metrics_address = "127.0.0.1:8081"  # of /metrics (docs/metrics.md) and /exports; default: not served

# [schedule.jobs.daily]
# cron = "0 8 * * *"     # minute, hour, day, month, weekday (0 and 7: Sunday); with six fields the second comes first
# time_zone = "Europe/Berlin"  # default: the schedule's
# does = ["gate", "report"]    # tasks of the job; default: ~
# receivers = ["archive", "team", "chat"]  # names of the receivers of the report

# [schedule.jobs.alerts]
# on = ["alarm", "reversion", "verdict", "confirmed"]  # in place of cron: events that the job reports at once
# receivers = ["team", "chat"]

# [schedule.jobs.apply]
# cron = "*/15 * * * *"  # and at once when a decision, an override or a rollout has changed
# does = ["export"]
# targets = ["routes", "repository"]  # names of the targets of the exports

# [schedule.targets.routes]
# kind = ~                     # this kind of target
# path = "routes/envoy.yaml"   # file that is replaced when the export changes
# format = "envoy"             # as of `shadowspec export`
# endpoint = "chat"            # default: the only one; for flags and routes all
# max_age_s = ~                # an ENABLE of older evidence is off
# accept_other_engine = ~      # also export verdicts for another engine
# routed = ~                   # for servers behind routes: only the slices that are on
# gateway = ~                  # Gateway that an HTTPRoute attaches to
# otherwise = "router:8000"    # servers of requests of no endpoint, where endpoints share hosts

# [schedule.targets.repository]
# kind = ~                      # this kind of target
# format = "vllm"               # as above
# endpoint = "chat"             # as above
# repository = "/var/lib/shadowspec/deploy.git"  # clone, best a bare one; its working tree is not touched
# path = "speculation/chat.json"  # file within the repository
# branch = ~                    # branch that gets a commit for each change
# remote = "origin"             # to which the branch is pushed; default: none

# [schedule.targets.servers]
# kind = ~               # this kind of target
# format = "vllm"               # as above
# endpoint = "chat"             # as above
# config_map = "shadowspec"     # name of the ConfigMap, which is made if it is missing
# key = "speculation.json"      # its key
# namespace = "models"          # default: the pod's
# api_url = ~                                 # address of Kubernetes' API
# account_folder = "/var/run/secrets/kubernetes.io/serviceaccount"  # folder of the service account's token

# [schedule.targets.flags]
# kind = ~                     # this kind of target, at http://METRICS_ADDRESS/exports/NAME
# format = "flagd"              # as above

# [schedule.receivers.archive]
# kind = "folder"              # this kind of receiver
# folder = "reports"           # where the reports are written
# formats = ["html", "json"]   # of the reports; default: ~

# [schedule.receivers.team]
# kind = ~                     # this kind of receiver
# host = "mail.example.com"    # mail server
# port = 587                   # of the mail server; default: the usual port of `security`
# security = ~                 # encryption of the connection
# username = "shadowspec"      # of the login; default: no login
# password_variable = "MAIL_PASSWORD"  # environment variable with the password, read for every mail; or password_file
# ca_file = "mail-ca.pem"      # certificate authorities; default: the system's
# sender = "shadowspec@example.com"   # address of the sender
# to = ["llm-platform@example.com"]   # addresses of the recipients

# [schedule.receivers.chat]
# kind = "webhook"             # this kind of receiver
# url_file = "chat.url"        # file with the URL, a secret: slack://, workflows:// (Teams), jsons://; or url_variable

[endpoints.chat]
# Folder of the model that serves this endpoint.
target = "models/target"
# Names under which the model is served.
served_models = ["my-model"]
# Globs for a record's endpoint, model and path.  All given globs must match, and the first endpoint that matches takes
# the record.  Default: the record's `endpoint` is this endpoint's name.
match = { model = "my-model", path = "/v1/*" }
# Labels that make slices: prompt_class, sampling_regime, context_bucket, tenant, output_constraint, language, and those
# of `labels`.
# slice_by = ~
# labels = { tier = ["free", "pro"] }   # metadata keys of the record that are labels; any other value is "other"
# client_labels = ~     # take labels from the request's metadata too, which its client writes
# sample_rate = ~       # share of each slice's sessions that may be measured
# Numbers of concurrent requests to measure at; `share` weighs them, e.g. by the time that production spends at each.
loads = [{ concurrency = 4, share = 1.0 }]
# Requests of a block for each slot of its load.  1: one batch, whose load falls as requests end.  4: a queue that
# refills slots.
# requests_per_slot = ~
# Engine that serves this endpoint: @engines, with a version or without
# ("vllm 0.32"), or "shadowspec-torch" for the engine in this process.  vLLM on CPUs is "vllm-cpu".  Verdicts on latency
# use only measurements on it (docs/policy.md, Which engine serves), and candidates draft by its rules
# (docs/proposers.md).
serving_engine = @
# owner = "search team" # who answers for it; the dashboard finds endpoints by it
# max_age_s = 3600.0    # records older than this, against the newest event time, expire; default: no limit
# scores = ["json_valid", "package.module:function"]  # functions that score both arms' outputs (docs/guardrails.md)
# contract = "sql"      # required form of outputs: "json", "tool_call", "sql"; by prompt class:
#                       # { structured = "sql" }; default: the form that the request asks for (docs/failures.md)
# sql_dialect = "postgres"   # sqlglot's name of the dialect; default: any
# applies_generation_config = false  # whether production takes sampling defaults from the target's
#                       # generation_config.json; default: as serving_engine does
# max_new_tokens = 256  # limit of the generated tokens per request; default: the request's max_tokens

# Sampling parameters of the server for requests that do not set them; part of the fingerprint.  They replace those of
# the target's generation_config.json and of the serving engine.
# [endpoints.chat.default_sampling]
# temperature = 0.7     # as in a request; default: 1
# top_p = 0.8           # as in a request; default: 1

[[endpoints.chat.candidates]]
name = "draft-k4"            # yours to choose; reports and exports show it
proposer = "draft_model"     # method of the engine in this process; "ngram" and "suffix" need no draft
draft = "models/draft"       # folder of the draft model or of the heads
num_speculative_tokens = 4   # tokens proposed in a step
# verify_rule = "rejection"  # default: rejection for draft_model, else greedy_draft; not rejection for ngram and suffix
# draft_confidence_threshold = ~    # above 0: a step stops drafting at a token that the draft model finds less likely
# draft_sampling = "request" # sampling parameters that the draft follows: all, or "temperature" only.
#                            # Default: as serving_engine does, else request
# drafts_within_limit = false  # whether a draft ends one token before the request's limit of output tokens.
#                            # Default: as serving_engine does, else false

# [[endpoints.chat.candidates]]
# name = "ngram-k4"
# proposer = "ngram"
# num_speculative_tokens = 4
# ngram_min = ~              # shortest suffix that is looked up in the text so far
# ngram_max = ~              # longest suffix that is looked up
# ngram_occurrence = "latest"  # occurrence that is copied from.
#                            # Default: as serving_engine does, else latest

# [[endpoints.chat.candidates]]
# name = "suffix-k8"
# proposer = "suffix"        # copies continuations from the text so far and from recent outputs (docs/proposers.md)
# num_speculative_tokens = 8
# suffix_decoding_max_tree_depth = ~     # tokens of match and draft together
# suffix_decoding_max_spec_factor = ~    # drafted tokens for each matched one
# suffix_decoding_min_token_prob = ~     # least probability of a draft up to its last token, by counts
# suffix_memory_tokens = ~               # tokens of recent outputs of this endpoint to remember; 0: only the request's

# Production's counters, which `shadowspec live` and `shadowspec schedule` read (docs/live.md).
# [endpoints.chat.live]
# metrics_urls = ["http://engine-0:8000/metrics"]  # one per replica; no other host is contacted
# engine = ~                 # engine of the replicas: @engines
# model = "my-model"         # name under which they serve the model; default: the first of served_models
# api_key_variable = "VLLM_API_KEY"  # environment variable with the key
# ca_file = "servers-ca.pem" # certificate authorities; default: the system's
# plain_metrics_urls = ["http://plain-0:8000/metrics"]  # replicas without speculation: the control of a partial rollout
# interval_s = ~             # between two readings by the scheduler
# timeout_s = ~              # for a page
# scored_drafts = ~          # drafts from which on a window has its full weight
# run_length = ~             # average number of windows between two false alarms, at least
# off_within_s = ~           # drafts later than this after an override are an alarm
# max_preempted_share = ~    # preempted requests above the share before ENABLE; 1: not watched
# max_kv_use = ~             # mean KV-cache use where preemptions are not counted; 1: not watched

# Pools of servers that routes choose between (docs/routes.md).
# [endpoints.chat.pools]
# speculative = ~                   # HOST:PORT of servers that speculate, InferencePool/NAME, LLMInferenceService/NAME
# plain = ~             # HOST:PORT of those that do not
# hosts = ["chat.example.com"]  # under which clients ask only for this endpoint; default: all that no other names

# Heads that draft from the target's hidden states, as they are published (docs/proposers.md, Heads).
# [[endpoints.chat.candidates]]
# name = "eagle-k4"
# proposer = "eagle3"        # or "medusa", "mlp_speculator", which draft at most one token per head
# draft = "models/eagle3"
# num_speculative_tokens = 4

# An endpoint that ShadowSpec measures through deployments of its target behind the OpenAI API (docs/servers.md).
# The engine in this process does not measure it; `target` is only the folder of its tokenizer.  Without it `run` asks
# the plain server for the tokens of prompts; `worker` does not, because questions would disturb its timing.
# [endpoints.served]
# engine = "openai"           # "openai": servers measure; default: ~, the engine in this process
# target = "models/target"
# served_models = ["served-model"]
# requests_per_slot = 1
# Servers with and without speculation.
# [endpoints.served.servers]
# baseline_url = "https://baseline.example:8000"        # root of the API, without /v1; no other host is contacted
# speculative_url = "https://speculative.example:8000"  # the same, of the only candidate's server
# model = "served-model"      # name under which all serve the target; default: the first of served_models
# device = "2x H100"          # hardware of each server, for reports and the fingerprint
# dtype = "bfloat16"          # dtype of the target on all servers
# api_key_variable = "VLLM_API_KEY"  # environment variable with the key
# ca_file = "servers-ca.pem"  # certificate authorities; default: the system's
# max_model_len = 8192        # context of all servers in tokens; default: the target's
# connect_timeout_s = ~       # to connect
# first_token_timeout_s = ~     # for the first token
# token_timeout_s = ~         # between two chunks with tokens
# total_timeout_s = ~         # for an answer
# max_attempts = ~            # at a request that the server refused for now, or whose answer was cut off
# reachable_within_s = ~      # how long a server may be away before a block; then a run ends
# prefix_cache = ~            # contents of the caches: as_served, evicted, on (cold conversations), off (nothing)
# api = ~                     # "completions": chats are sent as token ids too, not as the client wrote them
# score_logprobs = ~          # likeliest tokens to ask of the baseline for each token of a sampled output (vLLM's
#                             --max-logprobs must allow it).  0: sampled outputs have no parity (docs/server-figures.md)
# tool_call_format = "hermes" # form in which the target writes tool calls; default: requests with strict tools are
#                             refused
# facts = ~                   # how all servers were started, where they do not report it (docs/servers.md)
# audit_share = ~             # share of the outputs to replay in this process; then target and draft are folders with
#                             weights here
# audit_tolerance = ~         # share of the tokens by which the servers' rounding may move the audit's mean difference
#
#                             In place of speculative_url a server of each of several candidates:
#                                 [[endpoints.served.servers.speculative]]
#                                 candidate = "served-k4"
#                                 url = "https://k4.example:8000"
#                                 facts = { lora = false }
# [[endpoints.served.candidates]]
# name = "served-k4"
# proposer = "draft_model"
# draft = "models/draft"
# num_speculative_tokens = 4
#
#                             Any other method goes by the server's name in place of proposer (docs/servers.md).
#                                 method = "mtp"
#                                 speculative_config = { draft_tensor_parallel_size = 1 }
#                             Or the export that this server runs, in their place.
#                                 exported = "speculation.json"
"""


_POLICY = """\
# ShadowSpec's policy: the proof that a recommendation of speculation needs, and the stages of its rollout.  Keep it in
# version control and review a change like a change of code.  An unknown key is an error.  Lines that begin with "# "
# and a key show defaults.  Durations are seconds of event time, shares are fractions of 1; "none" switches a limit off.
# In [endpoints.NAME] and [endpoints.NAME.rollout] an endpoint overrides single keys.

version = 1

[default]
# Errors and evidence
# alpha = ~                     # chance of any false ENABLE at an endpoint, over all its life
# max_hypotheses = ~            # loads x candidates x (slices + 1), at most; they share alpha (docs/estimators.md)
# entry_clusters = ~            # closed sessions of a slice before its tests are read
# entry_share = ~               # share of its endpoint's requests of the last week that a slice then needs
# max_clusters = ~              # measured sessions after which an undecided hypothesis is undecidable
# indifference = ~              # an interval this close to its limit is undecidable
# max_missing = ~               # share of failed and shed requests above which the verdict is HOLD
# max_prompt_mismatch = ~       # share of prompts whose logged length (usage) is another, above which it is HOLD
# max_cache_gap = ~             # share of prompt tokens by which production's cache may hold more or less, else HOLD
# max_untimed_share = ~         # share of requests beyond timed_positions, above which ENABLE is HOLD
# window_s = ~                  # event time of a unit in production; recordings (0) have blocks as units
# blocks_per_window = ~         # blocks measured in a window, of each slice, load and worker process, on average
# min_span_s = ~                # event time that ENABLE needs, and as many days with evidence; default: a week
# recording_only = ~            # trial policy: verdicts speak of this recording only, need no span and are not promoted
# max_evidence_age_s = ~        # HOLD if the newest evidence is older at the look; "none": any age

# Required proof
# margin = ~                    # the speedup must exceed 1 + this
# fleet_fdr = ~                 # share of all endpoints' ENABLEs that may be false; beyond it they are not served
# require_mix_bound = ~         # the slices' bounds under the current mix must prove the endpoint's speedup too
# log_speedup_clip = ~                   # largest limit of a request's log speedup, up and down; default: ln 2
# objective = ~                 # "both": a lower total time must be proven too
# acceptance_metric = ~                                 # or "draft_acceptance_rate": of all drafted tokens
# floor = ~                     # the acceptance by that metric must exceed this
# max_scored_steps = ~          # steps (or drafted tokens) of a session that count in the acceptance
# tail_margin = ~               # a request is slowed if it took longer by more than this
# tail_share = ~                # tolerated share of slowed requests
# max_fault_share = ~           # share of faults in greedy outputs to exclude, with no fault seen
# max_carry_over = ~            # the order of the arms may add this to the speedup; above it is HOLD
# stream_margin = ~             # tolerated share of chats whose stream is broken, beyond the baseline's
# parity_margin = ~             # tolerated share of greedy outputs that differ by rounding, beyond the baseline's
# near_tie_logit = ~            # top-2 logit gap that counts as rounding; "none": 0.001 in float32, 0.125 in bfloat16
# parity_tokens = ~             # sampled tokens of a session that count in the z score
# z_clip = ~                    # limit of a session's z score
# z_bound = ~                   # the mean z score of sampled outputs must lie within plus or minus this
# memory_budget_share = ~       # extra peak memory over the baseline's; through servers: share of its KV cache
# memory_budget_tokens = ~      # KV-cache tokens that speculation may displace; both "none": memory is not judged
# require_serving_engine = ~    # latency counts only from the endpoint's serving_engine, where one is named

# Guardrails: each is required where it is set
# ttft_margin = ~               # the time to the first token may grow by this
# tpot_margin = ~               # the time per output token may grow by this
# p95_margin = ~                # the 95% quantile of end-to-end time may grow by this
# p99_margin = ~                # the 99% quantile of end-to-end time may grow by this
# max_cost_per_million_tokens = ~       # cost of a million output tokens, in the currency of the price
# device_price_per_hour = ~       # price of the device
# validity_margin = ~           # the share of valid structured outputs may fall by this
# score_margin = ~              # the mean score of outputs, from 0 to 1, may fall by this
# upgrade_margin = ~            # of a second deployment (docs/ci.md): it may be slower by this
# acceptance_margin = ~         # its acceptance may be lower by this than the first deployment's; "none": any loss
# task_margin = ~               # the mean score of task sets, from 0 to 1, may fall by this (`shadowspec evaluate`)

# After ENABLE
# drift_run_length = ~          # average number of units between false alarms of an endpoint's detectors, at least
# drift_tolerance = ~           # advisory detectors watch the lower bound at ENABLE less this
# on_alarm = ~                  # verdict after an alarm at an enabled hypothesis; or "hold"
# mix_window_s = ~              # event time that counts as the current traffic

# Units of evidence
# max_requests_per_cluster = ~  # requests of a session that count
# cluster_idle_s = ~            # a session closes when it is idle for this long
# cluster_max_age_s = ~         # a session or user is a new one, with a new draw, in each such span
# cluster_reopen_after_s = ~        # within its span a closed session starts again after this long
# time_block_s = ~              # requests without session and user are grouped by this much time
# dominant_key_share = ~        # a key with more than this share of its slice is cut by time_block_s
# timed_positions = ~           # a session is timed at one request, drawn from its first N (prefix_cache: at each)
# block_max_wait_s = ~          # event time after which a block runs before it is full; in production at least window_s
# min_rate = ~                  # the worker's sampling rate for decided slices

# Rollout
[default.rollout]
# partial_share = ~             # share of the enabled traffic in the partial stage
# shadow_soak_s = ~             # time of ENABLE before the partial stage
# partial_soak_s = ~            # time of ENABLE in the partial stage before the broad stage
# min_soak_blocks = ~           # blocks to measure in a stage before the next
# max_decision_age_s = ~        # an older decision moves nothing forward
# max_disabled_share = ~        # DISABLEd slices with this share of the traffic stop the rollout
# alarm_stage = ~               # where an alarm moves the rollout: one stage back, or to the "shadow"
# first_depth = ~               # the partial stage begins at the deepest proven depth up to this, else at the smallest
# depth_soak_s = ~              # time of ENABLE at a depth before the next
# partial_max_depth = ~         # deepest depth of the partial stage
# broad_max_depth = ~           # deepest depth of the broad stage
# context_max_depths = ~        # deepest depth by context bucket, e.g. { "32k-128k" = 2, "128k+" = 0 }; 0 is off
# control_level = ~             # probability of a false move back by the control, at most
# control_run_length = ~        # intervals until the control's first false alarm of a change, on average
# control_interval_s = ~        # interval in which production's pools are compared
# control_requests = ~          # requests of each pool in an interval, or it does not count
# max_slowdown = ~              # end-to-end time and time per output token may be longer by this
# max_first_token_slowdown = ~      # time to first token may be longer by this
# max_failure_increase = ~      # share of failed requests may be higher by this
# require_confirmed = ~         # a config leaves the shadow only if its export was measured as it is
# max_load_difference = ~       # requests per replica may differ by this, or an interval does not count
# control_retry_s = ~           # time until a config that the control moved back is tried again

# [endpoints.chat]
# max_hypotheses = 4
# [endpoints.chat.rollout]
# partial_share = 0.05
"""

_TABLE = re.compile(r"^(?:# )?\[{1,2}([A-Za-z_.]+)\]{1,2}$")
_DEFAULTED = re.compile(r"^((?:# )?([a-z_0-9]+) = (?:.*# default: )?)(~ *)")


def config_template(policy: str = DEFAULT_POLICY_NAME, serving_engine: str = IN_PROCESS) -> str:
    """A commented configuration that parses unchanged, beside a policy file and with the engine that it names."""
    sections: dict[str, type[ConfigSection]] = {
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
        "schedule.targets.routes": keys_of(FileTarget),
        "schedule.targets.repository": keys_of(GitTarget),
        "schedule.targets.servers": keys_of(ConfigMapTarget),
        "schedule.targets.flags": keys_of(HttpTarget),
        "schedule.receivers.archive": keys_of(FolderSettings),
        "schedule.receivers.team": keys_of(EmailSettings),
        "endpoints.chat.live": keys_of(LiveSettings),
        "endpoints.chat.pools": keys_of(Pools),
        "endpoints.served.servers": keys_of(ServerSettings),
    }
    written = _with_defaults(_CONFIG, tables).replace("serving_engine = @", f"serving_engine = {_text(serving_engine)}")
    written = written.replace("@engines", ", ".join(ENGINES))
    return written.replace(f'"{DEFAULT_POLICY_NAME}"', _text(policy))


def filled_template(inferred: str, policy: str, serving_engine: str) -> str:
    """The commented configuration with the values of a short one, which has one endpoint."""
    values = tomllib.loads(inferred)
    ((name, endpoint),) = values["endpoints"].items()
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)
    match = ", ".join(f"{field} = {_text(glob)}" for field, glob in endpoint["match"].items())
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
            (
                f"[[endpoints.{key}.candidates]]",
                *(f"{option} = {_toml(value)}" for option, value in candidate.items()),
                "",
            )
        )
        for candidate in endpoint["candidates"]
    )
    written = config_template(policy, serving_engine)
    head, example, rest = re.split(r"(\[\[endpoints\.chat\.candidates\]\]\n(?:\w+ = [^\n]*\n)+)", written, maxsplit=1)
    assert example, "the template has a candidate"
    for written_key, value in lines.items():
        plain = written_key.removeprefix("# ")
        head = re.sub(
            rf"^{re.escape(written_key)} = .*$", lambda _, p=plain, v=value: f"{p} = {v}", head, count=1, flags=re.M
        )
    return (head + "\n".join(candidates) + rest).replace("endpoints.chat", f"endpoints.{key}")


def policy_template() -> str:
    """A commented policy that parses unchanged."""
    return _with_defaults(_POLICY, {"default": asdict(GatePolicy()), "default.rollout": asdict(RolloutPolicy())})


def suggest_key(name: str, missing: Iterable[str]) -> str:
    """The end of a message about an unknown key or table: the key most like it, if one is.

    Args:
        missing: keys that its table needs and lacks; they are tried first.
    """
    written = re.findall(r"\b([a-z]\w*) = |^(?:# )?\[+([\w.]+)\]+$", _CONFIG + _POLICY, re.MULTILINE)
    known = {"gate"} | {part for key, table in written for part in (key, *table.split(".")) if part}
    return suggestion(name, missing) or suggestion(name, known)


def parameter_meanings() -> dict[str, str]:
    """What each parameter of the policy means, by name, in the words of the template."""
    parameters = re.findall(r"^# ([a-z_0-9]+) = (?:\{.*?\}|\S+) +# (.+)$", _POLICY, re.MULTILINE)
    return {name: text.strip(" .") for name, text in parameters}


def _with_defaults(template: str, tables: Mapping[str, Mapping[str, Any]]) -> str:
    """The template with each key's default, as wide as the "~" and the blanks behind it: comments stay in line."""
    lines, table = [], ""
    for line in template.splitlines():
        if header := _TABLE.match(line):
            table = header[1]
        elif defaulted := _DEFAULTED.match(line):
            start, key, gap = defaulted.groups()
            line = start + _toml(tables[table][key]).ljust(len(gap)) + line[defaulted.end() :]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _toml(value: Any) -> str:
    """A default as TOML has it; "none" where a policy has no limit."""
    if isinstance(value, ZoneInfo):
        return f'"{value.key}"'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{name}" = {_toml(entry)}' for name, entry in value.items()) + "}"
    return '"none"' if value is None else json.dumps(value)
