"""TensorRT-LLM: a YAML file for `trtllm-serve --config`.

Read in TensorRT-LLM's source (fields, version and licence: tests/data/peers/tensorrt_llm.json), and relied upon:
- `draft_len_schedule` changed its meaning: its keys were the smallest batch size of a depth, then became the
  largest.  Every range is therefore written with both ends and the first batch size that is off with a 0, which
  reads the same either way;
- its smallest key must have `max_draft_len`, which must be the largest depth;
- it excludes `max_concurrency`, which has the same effect for a single depth and is preferred for it;
- a draft model cannot be switched off at run time in every version (a depth of 0 is raised to 1), so that
  `max_batch_size` keeps the server within the measured loads;
- its acceptance gate turns speculation off forever on a rolling mean; none is exported.
"""

from __future__ import annotations

from shadowspec.rollout.export.export_document import Document, comment_lines, yaml_lines
from shadowspec.rollout.export.load_schedule import BatchRange, Schedule, counterpart, off_remarks, rule_remarks
from shadowspec.types import VerifyRule

PEER = "TensorRT-LLM"
DECODING_TYPES = {"draft_model": "Draft_Target", "eagle3": "Eagle3"}


def render(schedule: Schedule) -> Document:
    """The part of the configuration that concerns speculation."""
    head = comment_lines([schedule.basis])
    leading = schedule.leading_ranges()
    decoding_type = counterpart(schedule.config, DECODING_TYPES)
    if schedule.config is None or decoding_type is None or not leading:
        return _off(schedule, head)

    remarks = rule_remarks(PEER, schedule.config)
    depth = leading[0].num_speculative_tokens
    kept = []
    for each in leading:
        if each.num_speculative_tokens > depth:  # the first depth must be the largest
            break
        kept.append(each)
    last = kept[-1].last
    assert last is not None, "no schedule is on without end"
    if any(each.num_speculative_tokens and each.first > last for each in schedule.ranges):
        remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
    values: dict[str, object] = {
        "decoding_type": decoding_type,
        "max_draft_len": depth,
        "speculative_model": schedule.config.draft,
    }
    if schedule.config.verify_rule is VerifyRule.REJECTION:
        values["use_rejection_sampling"] = True
    if len(kept) == 1:
        values["max_concurrency"] = last
    else:
        values["draft_len_schedule"] = draft_len_schedule(kept)
    remarks.append(f"max_batch_size {last} keeps the server at batch sizes that were measured")
    lines = yaml_lines({"max_batch_size": last, "speculative_config": values})
    return Document("\n".join([*head, *lines]) + "\n", tuple(remarks))


def draft_len_schedule(ranges: list[BatchRange]) -> dict[str, int]:
    """Ranges without a gap from 1, by both their ends, then off."""
    schedule: dict[str, int] = {}
    for each in ranges:
        assert each.last is not None, "no schedule is on without end"
        schedule |= {str(each.first): each.num_speculative_tokens, str(each.last): each.num_speculative_tokens}
        end = each.last
    return schedule | {str(end + 1): 0}


def _off(schedule: Schedule, head: list[str]) -> Document:
    remarks = off_remarks(PEER, schedule, DECODING_TYPES)
    return Document("\n".join([*head, "speculative_config: null"]) + "\n", tuple(remarks))
