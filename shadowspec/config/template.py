"""The configuration that `shadowspec init` writes: every key, with its default and what it means."""

from __future__ import annotations

_TEMPLATE = """\
# ShadowSpec's configuration.  A key that is not known is an error.  Paths are relative to the working
# directory.  Lines that begin with "# " and a key show defaults; the others have to be made your own.

[database]
# SHADOWSPEC_DATABASE_URL overrides it.  Postgres: "postgresql+psycopg://user:password@host/database"
url = "sqlite:///shadowspec.db"

[privacy]
# Session, user, tenant and request ids are stored only as HMAC-SHA256 under this secret (16 bytes or more).
# SHADOWSPEC_HASH_SECRET overrides it.  Make one with:  head -c 32 /dev/urandom | base64 > shadowspec.secret
# Another secret starts new sessions everywhere.
hash_secret_file = "shadowspec.secret"

[engine]
# device = "auto"       # "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"
# dtype = "auto"        # "auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16", "float16"
# seed = 0              # of requests that bring none
# warmup_blocks = 2     # run and thrown away before the first block that counts

[gate]
# What has to be proven before speculation is recommended.  [endpoints.NAME.gate] overrides it key by key.
# alpha = 0.05                # chance of any false ENABLE at an endpoint, however often one looks
# max_hypotheses = 8          # slices x loads x candidates that may be decided, the whole endpoint included
# margin = 0.05               # speedup to be proven beyond 1
# floor = 0.40                # acceptance of the first drafted token to be proven
# tail_margin = 0.20          # a request is slowed if it took this much longer ...
# tail_share = 0.10           # ... and at most this share may be
# min_span_s = 604800.0       # event time that ENABLE must have seen: a week, a whole cycle of the traffic
# timed_positions = 4         # a session is timed at its J-th request, J drawn from 1 to this
# block_max_wait_s = 600.0    # event time after which a block that is not full runs short
# memory_budget_share = 0.25  # extra peak memory, of the baseline's own
# objective = "latency"       # "both": a lower total time must be proven too

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
# max_age_s = 3600.0    # older records are expired (against the newest event time); default: none are
# max_new_tokens = 256  # cap on the tokens generated per request; default: the request's own max_tokens

# What the server uses where a request is silent, e.g. from the model's generation_config.json.
# [endpoints.chat.default_sampling]
# temperature = 0.7
# top_p = 0.8

[[endpoints.chat.candidates]]
name = "draft-k4"
proposer = "draft_model"     # or "ngram", which needs no draft
draft = "models/draft"
num_speculative_tokens = 4
# verify_rule = "rejection"  # draft_model: rejection, greedy_draft, exact_match; ngram: greedy_draft, exact_match

# [[endpoints.chat.candidates]]
# name = "ngram-k4"
# proposer = "ngram"
# num_speculative_tokens = 4
# ngram_min = 2              # shortest suffix that is looked up in the text so far
# ngram_max = 4

# [endpoints.chat.gate]
# max_hypotheses = 4
"""


def config_template() -> str:
    """A commented configuration that parses as it stands."""
    return _TEMPLATE
