"""The configuration that `shadowspec init` writes: every key, with its default and what it means."""

from __future__ import annotations

import json
from typing import Final

DEFAULT_POLICY_NAME: Final = "policy.toml"

_TEMPLATE = """\
# ShadowSpec's configuration.  A key that is not known is an error.  Paths are relative to the working
# directory.  Lines that begin with "# " and a key show defaults; the others have to be made your own.

# What must be proven before speculation is recommended, in a file of its own (docs/policy.md); without this key the
# same keys stand here, in [gate] and [endpoints.NAME.gate].
policy = "policy.toml"

[database]
# SHADOWSPEC_DATABASE_URL overrides it.  Postgres: "postgresql+psycopg://user:password@host/database"
url = "sqlite:///shadowspec.db"

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
# dead_letter_topic = "shadow.dead-letters"  # must be there: the worker stops rather than drop a record
# group_id = "shadowspec"  # also the name under which the database counts; workers that share it share the work
# group_instance_id = "shadow-0"  # a name of this worker's own: it may restart within session_timeout_ms unnoticed
# format = "auto"          # "openai", "litellm", "cloudevents", "kong"; "auto" tells them apart
# session_from = "body"    # or "key", "header:NAME": a session that is not sampled is then dropped undecoded,
# endpoint_from = "body"   # if the endpoint too stands outside: "topic" (its name is the endpoint's), "header:NAME"
# auto_offset_reset = "earliest"  # where a partition begins that was never consumed; or "latest"
# session_timeout_ms = 45000
# heartbeat_interval_ms = 3000
# max_poll_interval_ms = 300000
# max_poll_records = 500
# connect_timeout_ms = 30000
# max_record_bytes = 16777216
# To encrypt and to log in; SHADOWSPEC_KAFKA_PASSWORD overrides password_file.
# security_protocol = "SASL_SSL"  # default: "PLAINTEXT"; "SSL", "SASL_PLAINTEXT"
# sasl_mechanism = "SCRAM-SHA-512"  # "SCRAM-SHA-256", "PLAIN"
# username = "shadowspec"
# password_file = "kafka.password"
# ssl_ca_file = "kafka-ca.pem"  # default: the system's authorities
# ssl_certificate_file = "client.pem"  # with ssl_key_file, where the brokers want a certificate
# ssl_key_file = "client.key"

[engine]
# device = "auto"       # "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"
# dtype = "auto"        # "auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16", "float16"
# passes = "dynamic"    # "graphs": steps as CUDA graphs, not tried on a GPU yet; "auto": graphs where they can be
# kernels = "torch"     # "triton" (docs/kernels.md), not tried on a GPU yet; "auto": Triton's where a GPU can run them
# seed = 0              # of requests that bring none
# warmup_blocks = 2     # run and thrown away before the first block that counts
# audit_share = 0.05    # of the measured requests: their outputs are replayed, and compared with what the loop counted

[worker]
# devices = []             # an engine process on each, e.g. ["cuda:0", "cuda:1"]; default: one on the engine's device
# max_queued_blocks = 8    # in front of the engine; then the overload rule applies
# overload = "pause"       # the partitions; "shed": requests, counted as such
# build_timeout_s = 1800.0 # to load the models; an engine that takes longer is ended, and at its first start the worker
# block_timeout_s = 600.0  # an engine that takes longer is ended, and the block's requests are tried alone
# max_attempts = 3         # at a request that ends the engine
# max_unfinished_messages = 50000  # consumed, but not yet measured and written
# flush_interval_s = 1.0   # between two writes to the database
# refresh_rates_s = 30.0   # between two looks at the decisions, which set the sampling rates
# drain_timeout_s = 60.0   # to finish what is begun, when asked to stop
# health_address = "127.0.0.1:8080"  # of /livez, /readyz and /metrics

[dashboard]
# host = "127.0.0.1"     # whoever can reach it sees every figure
# port = 8501
# title = "ShadowSpec"
# refresh_s = 30.0       # how often an open page looks for news
# stale_after_s = 86400.0     # without a new measurement, evidence is said to be stale
# price_per_gpu_hour = 2.5    # in the currency; default: the policy's device_price_per_hour, else no cost is shown
# currency = "USD"
# data_note = "Mirror of the production gateway"  # what the data is and is not, said on every page and report
# auth_file = "/run/secrets/dashboard.toml"       # login by OpenID Connect; see docs/dashboard.md
# local_role = "viewer"       # without a login: "operator" lets whoever reaches the address use the kill switch
# override_url = "postgresql+psycopg://operator@db/shadowspec"  # the kill switch's own role

# [dashboard.roles]
# claim = "email"             # of the login; or one that lists groups
# operators = ["on-call@example.com"]    # may use the kill switch
# viewers = ["team@example.com"]         # may look; without it whoever logs in

# Gate runs and reports at set times, by `shadowspec schedule` (docs/schedule.md).
[schedule]
# time_zone = "UTC"      # of jobs that name none, and of dates without an offset
# catch_up = 7           # missed periods of a job that get a report each; the first of them has what lies before
# max_attempts = 12      # at a delivery, before it is given up
# retry_first_s = 30.0   # after the first failure; doubled each time
# retry_longest_s = 3600.0
# timeout_s = 30.0       # that a receiver may take to answer

# [schedule.jobs.daily]
# cron = "0 8 * * *"     # minute, hour, day, month, day of the week (0 and 7: Sunday); or six, with the second first
# time_zone = "Europe/Berlin"  # default: the schedule's
# does = ["gate", "report"]    # default: ["report"]
# receivers = ["archive", "team", "chat"]

# [schedule.receivers.archive]
# kind = "folder"
# folder = "reports"
# formats = ["html", "json"]   # and "md"; default: ["html"]

# [schedule.receivers.team]
# kind = "email"
# host = "mail.example.com"
# port = 587                   # default by security: 465 for "tls", 587 for "starttls", 25 for "none"
# security = "starttls"        # default; "tls", "none"
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
# Labels that make hypotheses, of: prompt_class, sampling_regime, context_bucket, tenant, and your own.
# slice_by = ["prompt_class", "sampling_regime"]
# labels = ["tier"]     # keys of the record's metadata that are kept as labels
# sample_rate = 1.0     # share of sessions (per slice) that may be measured
# Concurrency to measure at; shares weigh several, e.g. the shares of time spent at each.
loads = [{ concurrency = 4, share = 1.0 }]
# Requests of a block for each slot of its load.  1: one batch, in which a finished request's slot idles along; 4: a
# queue whose next request takes the slot that is free, so that as many requests as the load are in progress.
# requests_per_slot = 1
# serving_engine = "vllm 0.32"  # what serves this endpoint, by name, or by name and version.  Verdicts that rest on
#                       # latency are then made of what was measured on it alone: docs/policy.md
# max_age_s = 3600.0    # older records are expired (against the newest event time); default: none are
# scores = ["json_valid", "package.module:function"]  # of both arms' outputs, for guardrails: docs/guardrails.md
# contract = "sql"      # what outputs have to be: "json", "tool_call", "sql" (extra `sql`); by class
#                       # of prompts: { structured = "sql" }; default: what a request asks for: docs/failures.md
# sql_dialect = "postgres"   # sqlglot's name of it; default: whatever it reads
# max_new_tokens = 256  # cap on the tokens generated per request; default: the request's own max_tokens

# What the server uses where a request is silent, e.g. from the model's generation_config.json.
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
# draft_confidence_threshold = 0.0  # above it, e.g. 0.4: a row drafts no token that the draft model gives less

# [[endpoints.chat.candidates]]
# name = "ngram-k4"
# proposer = "ngram"
# num_speculative_tokens = 4
# ngram_min = 2              # shortest suffix that is looked up in the text so far
# ngram_max = 4

# [[endpoints.chat.candidates]]
# name = "suffix-k8"
# proposer = "suffix"        # what followed in the text so far, and in recent outputs: docs/engine.md
# num_speculative_tokens = 8
# suffix_decoding_max_tree_depth = 24    # tokens of match and draft together
# suffix_decoding_max_spec_factor = 1.0  # drafted tokens for each matched one
# suffix_decoding_min_token_prob = 0.1   # how likely a draft must be, by its counts, up to its last token
# suffix_memory_tokens = 100000          # of recent outputs of this endpoint; 0: the request alone

# What the endpoint's production engines count, read by `shadowspec live` and `shadowspec schedule`: docs/live.md
# [endpoints.chat.live]
# metrics_urls = ["http://engine-0:8000/metrics"]  # one per replica; no other host is contacted
# engine = "vllm"            # default; "sglang", "tensorrt-llm"
# model = "my-model"         # the name under which they serve it; default: the first of served_models
# api_key_variable = "VLLM_API_KEY"  # variable of the environment that holds the key
# ca_file = "servers-ca.pem" # default: the system's authorities
# interval_s = 60.0          # between two readings of the scheduler: the guard's windows
# timeout_s = 10.0           # that a page may take
# scored_drafts = 256        # drafts with which a window weighs in full
# run_length = 100000        # windows between two false alarms, on average, at least

# Heads that draft from the target's hidden states, as they are published (docs/engine.md, Heads).
# [[endpoints.chat.candidates]]
# name = "eagle-k4"
# proposer = "eagle3"        # or "medusa", "mlp_speculator", which draft at most one token per head
# draft = "models/eagle3"
# num_speculative_tokens = 4

# An endpoint may be measured through two deployments of its target behind the OpenAI API (docs/servers.md) instead of
# by the engine in this process.  It has one candidate then; `target` is its tokenizer's folder: no weights are loaded.
# [endpoints.served]
# engine = "openai"           # default: "in_process"
# target = "models/target"
# served_models = ["served-model"]
# requests_per_slot = 4       # servers keep no slot that nobody uses: only a queue keeps its load
# [endpoints.served.servers]
# baseline_url = "https://baseline.example:8000"        # roots, without /v1; no other host is contacted
# speculative_url = "https://speculative.example:8000"
# model = "served-model"      # the name under which both serve the target; default: the first of served_models
# device = "2x H100"          # what both run on, and in which dtype
# dtype = "bfloat16"
# api_key_variable = "VLLM_API_KEY"  # variable of the environment that holds the key
# ca_file = "servers-ca.pem"  # default: the system's authorities
# max_model_len = 8192        # tokens that both take; default: as many as the target
# connect_timeout_s = 5.0
# first_token_timeout_s = 60.0
# token_timeout_s = 30.0      # between two chunks with tokens
# total_timeout_s = 300.0
# max_attempts = 3            # at a request that was refused for now, or whose answer was cut off
# reachable_within_s = 60.0   # that a server may be away before a block; then the run ends
# score_logprobs = 20         # likeliest tokens asked of the baseline per token of a sampled output (its --max-logprobs
#                             must allow it); more where top_k or a temperature near 1 wants it; 0: none is scored
# [[endpoints.served.candidates]]
# name = "served-k4"          # what the speculative server does
# proposer = "draft_model"
# draft = "models/draft"
# num_speculative_tokens = 4
"""


def config_template(policy: str = DEFAULT_POLICY_NAME) -> str:
    """A commented configuration that parses as it stands beside a policy file, which it names."""
    return _TEMPLATE.replace(f'"{DEFAULT_POLICY_NAME}"', json.dumps(policy, ensure_ascii=False))
