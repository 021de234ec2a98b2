"""The policy that `shadowspec init` writes: every parameter with its default and what it means."""

from __future__ import annotations

import re

_TEMPLATE = """\
# ShadowSpec's policy: what must be proven before speculation is recommended, and how it is rolled out.  Keep it
# in version control: a change of policy is reviewed like a change of code.  A key that is not known is an error.
# Lines that begin with "# " and a key show defaults.  Durations are seconds of event time, shares fractions of 1;
# "none" where a default may be absent.  [endpoints.NAME] and [endpoints.NAME.rollout] override key by key.

version = 1

[default]
# Errors and evidence
# alpha = 0.05                  # chance of any false ENABLE at an endpoint, however often one looks
# max_hypotheses = 8            # slices x loads x candidates that may be decided, the whole endpoint included
# entry_clusters = 20           # closed sessions of a slice from which on its tests are read
# max_clusters = 20000          # measured sessions after which an open question is given up as undecidable
# indifference = 0.01           # an interval this close about its limit is undecidable
# max_missing = 0.05            # share of failed and shed requests above which the verdict is HOLD
# min_span_s = 604800.0         # event time that ENABLE must have seen: a week, a whole cycle of the traffic
# max_evidence_age_s = "none"   # HOLD if the newest evidence is older than this when the gate looks; none: of any age

# What must be proven
# margin = 0.05                 # speedup beyond 1
# log_speedup_clip = 0.6931471805599453  # a request counts as no more than so much faster or slower (log; twice)
# objective = "latency"         # "both": a lower total time must be proven too
# acceptance_metric = "first_position_acceptance_rate"  # or "draft_acceptance_rate", which falls with depth
# floor = 0.40                  # acceptance by that metric
# max_scored_steps = 64         # a session weighs no more than so many of the metric's denominator
# tail_margin = 0.20            # a request is slowed if it took this much longer ...
# tail_share = 0.10             # ... and at most this share may be
# max_fault_share = 0.05        # greedy outputs that differ from the target's own: none seen, and no more than this
# parity_margin = 0.05          # greedy outputs that differ by rounding, beyond the baseline's own
# near_tie_logit = "none"       # top-2 gap up to which it is rounding; none: 0.001 in float32, 0.125 in bfloat16
# parity_tokens = 64            # a session weighs no more than so many sampled tokens
# z_clip = 0.2                  # and its mean z is cut at this
# z_bound = 0.02                # the mean z of sampled outputs lies within plus or minus this
# memory_budget_share = 0.25    # extra peak memory, of the baseline's own; or "none"
# memory_budget_tokens = "none" # KV-cache tokens that the draft may displace; both "none": memory is not judged
# require_serving_engine = true # latency counts from the endpoint's serving_engine alone, where one is named

# Guardrails: each is required where it is set
# ttft_margin = "none"          # time to the first token may be longer by this
# tpot_margin = "none"          # time per output token may be longer by this
# p95_margin = "none"           # 95% quantile of end-to-end time may be longer by this
# p99_margin = "none"
# max_cost_per_million_tokens = "none"  # output tokens, in the currency of the price
# device_price_per_hour = "none"
# validity_margin = "none"      # share of valid structured outputs may be lower by this
# score_margin = "none"         # mean of the user's score, from 0 to 1, may be lower by this

# After ENABLE
# drift_run_length = 10000      # units between false alarms of an endpoint's detectors, on average, at least
# drift_tolerance = 0.02        # advisory detectors hold to the lower bound at ENABLE less this
# on_alarm = "disable"          # or "hold": what becomes of ENABLE when a detector sounds
# mix_window_s = 604800.0       # event time that counts as the current traffic: a whole cycle

# What is a unit of evidence
# max_requests_per_cluster = 8  # of a session
# cluster_idle_s = 1800.0       # a session is over when it is idle for so long ...
# cluster_max_age_s = 86400.0   # ... or this old ...
# cluster_reopen_after_s = 86400.0  # ... and so much later its key is a new one
# time_block_s = 600.0          # requests without session or user are taken together by time
# dominant_key_share = 0.05     # a key above this share of its slice is cut into such times
# timed_positions = 4           # a session is timed at its J-th request, J drawn from 1 to this
# block_max_wait_s = 600.0      # event time after which a block that is not full runs short
# min_rate = 0.01               # the worker's sampling rate for slices of which everything is decided

[default.rollout]
# partial_share = 0.10          # of the enabled traffic, in the partial stage
# shadow_soak_s = 86400.0       # for which ENABLE must have stood before it
# partial_soak_s = 604800.0     # for which it must have stood in it, before all is served with speculation
# min_soak_blocks = 50          # blocks newly measured in a stage before it is left: silence proves nothing
# max_decision_age_s = 86400.0  # an older decision moves nothing forward
# max_disabled_share = 0.05     # a DISABLEd slice with so much of the traffic lets nothing move forward
# alarm_stage = "previous"      # where an alarm moves the rollout: one stage back, or to the "shadow"
# first_depth = 1               # speculative tokens that the partial stage begins with
# depth_soak_s = 86400.0        # for which ENABLE must have stood at a depth before the next
# partial_max_depth = 4
# broad_max_depth = 16          # never deeper than what was measured
# context_max_depths = {}       # by context bucket, e.g. { "32k-128k" = 2, "128k+" = 0 }; 0 is off

# [endpoints.chat]
# max_hypotheses = 4
# [endpoints.chat.rollout]
# partial_share = 0.05
"""


def policy_template() -> str:
    """A commented policy that parses as it stands."""
    return _TEMPLATE


def parameter_meanings() -> dict[str, str]:
    """What each parameter means, by name, in the words of the template; none for one that it leaves without."""
    found = re.findall(r"^# ([a-z_0-9]+) = (?:\".*?\"|\{.*?\}|\S+) +# (.+)$", _TEMPLATE, re.MULTILINE)
    return {name: text.strip(" .") for name, text in found}
