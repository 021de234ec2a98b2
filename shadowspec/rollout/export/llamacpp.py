"""llama.cpp: the arguments of `llama-server` that concern speculation, on one line, quoted for a shell.

Read in llama.cpp's source (names, version and licence: tests/data/peers/llamacpp.json), and relied upon here:
- a draft model always drafts its arg-max, and the target's token is compared with it: rejection has no counterpart;
- it drafts as many tokens at every batch size: `--parallel` keeps the server within the measured loads;
- `ngram-simple` looks up one length of n-grams, copies from the latest occurrence, and drafts nothing shorter than the
  n-gram;
- a number of arguments have changed their names (`--draft-max` is refused now): those of build 0c1e570 are written;
- without arguments a draft model that is given speculates, so that off says `--spec-type none`.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from shadowspec.rollout.export.endpoint_state import ServedDecision
from shadowspec.rollout.export.engine_match import MethodKeys, served_settings
from shadowspec.rollout.export.export_document import Document, comment_lines
from shadowspec.rollout.export.load_schedule import (
    Schedule,
    counterpart,
    endpoint_schedule,
    off_remarks,
    rule_remarks,
    single_depth_schedule,
)
from shadowspec.types import Override, SpeculationConfig, VerifyRule
from shadowspec.types.served_methods import plain_key

PEER = "llama.cpp"
KEYS = MethodKeys("llama.cpp", "spec-type", "spec-draft-n-max", "spec-draft-model")
TYPES = {"draft_model": "draft-simple", "eagle3": "draft-eagle3", "ngram": "ngram-simple"}
GGUF = ".gguf"
REJECTION_MEASURED = "llama.cpp drafts the arg-max and compares, and rejection was measured: exported as off"


def choose(
    endpoint: str, served_decisions: Sequence[ServedDecision], *, overrides: Collection[Override] = ()
) -> Schedule:
    """The one depth that a server of the endpoint runs: the one that reaches the largest batch."""
    schedule = endpoint_schedule(endpoint, served_decisions, overrides=overrides)
    return single_depth_schedule(schedule, served_decisions, overrides=overrides)


def render(schedule: Schedule) -> Document:
    """The arguments; `--spec-type none` where nothing is on."""
    config, leading = schedule.config, schedule.leading_ranges()
    if config is not None and config.is_served_method:
        return _served(schedule, config)
    kind = counterpart(config, TYPES)
    if config is None or kind is None or not leading:
        return _off(schedule, off_remarks(PEER, schedule, TYPES))
    depth, last = leading[0].num_speculative_tokens, leading[0].last
    assert last is not None, "no schedule is on without end"
    if (lacking := _lacking(config, depth)) is not None:
        return _off(schedule, [lacking])
    remarks = rule_remarks(PEER, config)
    if any(each.is_on and each.decision.concurrency > last for each in schedule.served_decisions):
        remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
    arguments = ["--spec-type", kind]
    if config.proposer == "ngram":
        arguments += ["--spec-ngram-simple-size-n", str(config.ngram_max), "--spec-ngram-simple-size-m", str(depth)]
    else:
        arguments += ["--spec-draft-model", str(config.draft), "--spec-draft-n-max", str(depth)]
        arguments += ["--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]
        if not str(config.draft).endswith(GGUF):
            remarks.append(f"llama.cpp takes a GGUF file: name the one that was converted from {config.draft}")
    arguments += ["--parallel", str(last)]
    remarks.append(f"--parallel {last} keeps the server at batch sizes that were measured")
    return Document("\n".join([*comment_lines([schedule.basis]), shlex.join(arguments)]) + "\n", tuple(remarks))


def _served(schedule: Schedule, config: SpeculationConfig) -> Document:
    """The arguments with which the measured server was started."""
    found = served_settings(PEER, schedule, config, KEYS)
    if found.values is None:
        return _off(schedule, found.remarks)
    arguments = [each for name, value in found.values.items() for each in (f"--{_argument(name)}", str(value))]
    arguments += ["--parallel", str(found.max_batch_size)]
    remark = f"--parallel {found.max_batch_size} keeps the server at batch sizes that were measured"
    lines = [*comment_lines([schedule.basis]), shlex.join(arguments)]
    return Document("\n".join(lines) + "\n", (*found.remarks, remark))


def _argument(key: str) -> str:
    return plain_key(key).replace("_", "-")


def _lacking(config: SpeculationConfig, depth: int) -> str | None:
    """Why the measured way of drafting cannot be had; None where it can."""
    if config.proposer != "ngram":
        return REJECTION_MEASURED if config.verify_rule is VerifyRule.REJECTION else None
    if config.ngram_min != config.ngram_max:
        return (
            f"llama.cpp looks up one length of n-grams, and {config.ngram_min} to {config.ngram_max} were measured: "
            "exported as off"
        )
    if depth < config.ngram_max:
        return (
            f"llama.cpp drafts no fewer tokens than it looks up ({config.ngram_max}), and {depth} were measured: "
            "exported as off"
        )
    return None


def _off(schedule: Schedule, remarks: Sequence[str]) -> Document:
    lines = [*comment_lines([schedule.basis, "speculation is off"]), shlex.join(["--spec-type", "none"])]
    return Document("\n".join(lines) + "\n", tuple(remarks))
