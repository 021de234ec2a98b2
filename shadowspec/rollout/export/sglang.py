"""SGLang: a YAML file for `--config`, and the JSON of `--speculative-adaptive-config` where the algorithm takes one.

Read in SGLang's source (fields, version and licence: tests/data/peers/sglang.json), and relied upon here:
- a key of the adaptive config is the smallest batch size at which its entry applies, and batch sizes are first
  rounded up to a captured CUDA graph: so only speculation without a gap from batch size 1 is exported;
- an entry with one candidate step is fixed; `[0]` is off; keys that are no numbers are ignored, and so may name
  decisions;
- only EAGLE and EAGLE3 adapt.  Given to another algorithm the adaptive config is dropped with a warning and the
  full depth runs at every batch size.  There `max-running-requests` keeps the server within the measured loads;
- without it SGLang sets 48 requests when speculation is on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from shadowspec.rollout.export.endpoint_state import ServedDecision
from shadowspec.rollout.export.engine_match import MethodKeys, served_settings
from shadowspec.rollout.export.export_document import Document, comment_lines, yaml_lines
from shadowspec.rollout.export.load_schedule import (
    Schedule,
    counterpart,
    endpoint_schedule,
    off_remarks,
    rule_remarks,
    single_depth_schedule,
)
from shadowspec.types import Override, SpeculationConfig, VerifyRule

PEER = "SGLang"
ADAPTIVE_ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3"}
ALGORITHMS = {"draft_model": "STANDALONE", **ADAPTIVE_ALGORITHMS}
METHOD_KEYS = MethodKeys("sglang", "speculative-algorithm", "speculative-num-steps", "speculative-draft-model-path")
ADAPTIVE_SUFFIX = ".adaptive.json"


def choose(
    endpoint: str, served_decisions: Sequence[ServedDecision], *, overrides: Collection[Override] = ()
) -> Schedule:
    """A server's schedule for the endpoint; where the algorithm cannot adapt, the depth that reaches furthest."""
    schedule = endpoint_schedule(endpoint, served_decisions, overrides=overrides)
    if schedule.config is None or _is_adaptive(schedule.config):
        return schedule
    return single_depth_schedule(schedule, served_decisions, overrides=overrides)


def render(schedule: Schedule, adaptive_path: str) -> Document:
    """The flags; `adaptive_path` is where the adaptive config will lie, as the server sees it."""
    head = comment_lines([schedule.basis])
    if schedule.config is not None and schedule.config.is_served_method:
        return _served_method(schedule, schedule.config, head)
    leading = schedule.leading_ranges()
    algorithm = counterpart(schedule.config, ALGORITHMS)
    if schedule.config is None or algorithm is None or not leading:
        return _off(schedule, head)

    remarks = rule_remarks(PEER, schedule.config)
    is_adaptive = _is_adaptive(schedule.config)
    if not is_adaptive:
        leading = leading[:1]  # one depth only
    last = leading[-1].last
    assert last is not None, "no schedule is on without end"
    if any(each.is_on and each.decision.concurrency > last for each in schedule.served_decisions):
        remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
    depth = max(each.num_speculative_tokens for each in leading)
    flags: dict[str, object] = {
        "speculative-algorithm": algorithm,
        "speculative-draft-model-path": schedule.config.draft,
        "speculative-num-steps": depth,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": depth + 1,
    }
    if schedule.config.verify_rule is VerifyRule.REJECTION:
        flags["speculative-use-rejection-sampling"] = True
    beside = {}
    if is_adaptive:
        flags |= {"speculative-adaptive": True, "speculative-adaptive-config": adaptive_path}
        entries: dict[str, object] = {str(each.first): _fix_steps(each.num_speculative_tokens) for each in leading}
        entries |= {str(last + 1): _fix_steps(0), "shadowspec_decisions": list(schedule.decision_ids)}
        beside[ADAPTIVE_SUFFIX] = json.dumps(entries, indent=2) + "\n"
    flags["max-running-requests"] = last
    remarks.append(f"max-running-requests {last} keeps the server at batch sizes that were measured")
    return Document("\n".join([*head, *yaml_lines(flags)]) + "\n", tuple(remarks), beside)


def _is_adaptive(config: SpeculationConfig) -> bool:
    """Whether its depth may depend on the batch size."""
    return config.proposer in ADAPTIVE_ALGORITHMS and not config.is_served_method


def _served_method(schedule: Schedule, config: SpeculationConfig, head: list[str]) -> Document:
    """The flags as the measured server was given them, and how far it may go with them."""
    found = served_settings(PEER, schedule, config, METHOD_KEYS)
    if found.values is None:
        return Document("\n".join([*head, *comment_lines(["speculation is off"]), "{}"]) + "\n", found.remarks)
    flags = {**found.values, "max-running-requests": found.max_batch_size}
    limit = f"max-running-requests {found.max_batch_size} keeps the server at batch sizes that were measured"
    return Document("\n".join([*head, *yaml_lines(flags)]) + "\n", (limit, *found.remarks))


def _off(schedule: Schedule, head: list[str]) -> Document:
    remarks = off_remarks(PEER, schedule, ALGORITHMS)
    # Speculation is off where no flag is given.
    return Document("\n".join([*head, *comment_lines(["speculation is off"]), "{}"]) + "\n", tuple(remarks))


def _fix_steps(num_steps: int) -> dict[str, list[int]]:
    return {"candidate_steps": [num_steps]}
