"""vLLM: the JSON of `--speculative-config`.

Read in vLLM's source (fields, versions and licence: tests/data/peers/vllm.json), and relied upon here:
- the ranges of `num_speculative_tokens_per_batch_size` are inclusive, begin at 1 and do not overlap; a batch size
  that none of them holds gets the depth of the range before it, so that every off is written out, the last
  without end;
- depths are cut to `num_speculative_tokens`;
- with data parallelism the ranges are dropped with a warning and the full depth runs at every batch size;
- the suffix method asserts that every step has the full depth and so ends the server at a range with another one
  (vllm-project/vllm#46399): none is written for it, and it runs at every batch size that the server allows;
- a draft model drafts as many tokens as it may, at any confidence;
- an unknown key is refused, so that no decision id can be written;
- a draft model of another vocabulary drafts the arg-max of the shared tokens (`use_heterogeneous_vocab`), no samples;
- Medusa drafts the arg-max of every head that the checkpoint holds, for any sampling;
- `mlp_speculator` passes the configuration, and the engine then does not start (vllm-project/vllm issue 47825).

The config of a vLLM server that drafted by its `method` is written unchanged, with no ranges of batch sizes: not every
method takes them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from shadowspec.rollout.export.engine_match import MethodKeys, served_settings
from shadowspec.rollout.export.export_document import Document
from shadowspec.rollout.export.load_schedule import BatchRange, Schedule, off_remarks, rule_remarks
from shadowspec.types import SpeculationConfig, VerifyRule

PEER = "vLLM"
NOTHING = "null\n"  # vLLM reads it as no speculation
MAX_BATCH_SIZE = 2**31 - 1  # means a range without end
DATA_PARALLEL = (
    "with --data-parallel-size above 1 vLLM drops the batch-size ranges and speculates at every batch size: "
    "do not use this there"
)
SUFFIX = (
    "vLLM's cache of outputs counts requests and not tokens, and holds outputs that are still being written. Its "
    "proposals may differ from those that were measured"
)
MEDUSA = "vLLM drafts with every Medusa head of the checkpoint: let it hold num_speculative_tokens of them"
MEDUSA_SAMPLED = "vLLM's Medusa heads draft their arg-max, and rejection was measured: exported as off"
HETEROGENEOUS = "heterogeneous_draft_model"
HETEROGENEOUS_SAMPLED = (
    "vLLM drafts the arg-max of shared tokens where vocabularies differ, and rejection was measured: exported as off"
)
SHARED_TOKENS = "vLLM finds shared tokens by their spelling: of other kinds of tokenizers fewer may be shared than here"
METHOD_KEYS = MethodKeys("vllm", "method", "num_speculative_tokens", "model")
PROPOSERS = frozenset({"draft_model", HETEROGENEOUS, "ngram", "suffix", "medusa", "eagle3"})


def render(schedule: Schedule) -> Document:
    """The value of `--speculative-config`; `null` where nothing is on."""
    config = schedule.config
    if config is None:
        return Document(NOTHING)
    if config.is_served_method:
        return _served_method(schedule, config)
    if config.is_adaptive or config.proposer not in PROPOSERS:
        return _off(schedule)
    if config.proposer == "suffix":
        return _suffix(schedule, config, schedule.leading_ranges())
    is_sampling = config.verify_rule is VerifyRule.REJECTION
    if config.proposer == "medusa" and is_sampling:
        return Document(NOTHING, (MEDUSA_SAMPLED,))
    if config.proposer == HETEROGENEOUS and is_sampling:
        return Document(NOTHING, (HETEROGENEOUS_SAMPLED,))
    values: dict[str, object] = {"num_speculative_tokens": schedule.max_num_speculative_tokens}
    remarks = [DATA_PARALLEL, *rule_remarks(PEER, config)]
    if config.proposer == "ngram":
        values |= {"method": "ngram", "prompt_lookup_min": config.ngram_min, "prompt_lookup_max": config.ngram_max}
    elif config.proposer == "medusa":
        values |= {"method": "medusa", "model": config.draft}
        remarks.append(MEDUSA)
    elif config.proposer == HETEROGENEOUS:
        values |= {"method": "draft_model", "model": config.draft, "use_heterogeneous_vocab": True}
        remarks.append(SHARED_TOKENS)
    else:
        values |= {
            "method": config.proposer,
            "model": config.draft,
            "draft_sample_method": "probabilistic" if is_sampling else "greedy",
        }
    values["num_speculative_tokens_per_batch_size"] = [
        [each.first, each.last or MAX_BATCH_SIZE, each.num_speculative_tokens] for each in schedule.ranges
    ]
    return Document(json.dumps(values) + "\n", tuple(remarks))


def _suffix(schedule: Schedule, config: SpeculationConfig, leading: Sequence[BatchRange]) -> Document:
    """One depth from batch size 1 on, and how far the server may go with it."""
    if not leading:
        return _off(schedule)
    last = leading[0].last
    assert last is not None, "no schedule is on without end"
    values: dict[str, object] = {
        "num_speculative_tokens": leading[0].num_speculative_tokens,
        "method": "suffix",
        "suffix_decoding_max_tree_depth": config.suffix_decoding_max_tree_depth,
        "suffix_decoding_max_spec_factor": config.suffix_decoding_max_spec_factor,
        "suffix_decoding_min_token_prob": config.suffix_decoding_min_token_prob,
    }
    if config.suffix_memory_tokens == 0:
        values["suffix_decoding_max_cached_requests"] = 0
    remarks = [
        f"vLLM's suffix method speculates at every batch size: run the server with --max-num-seqs {last}, "
        "the largest that was measured",
        SUFFIX,
    ]
    if any(each.num_speculative_tokens and each.first > last for each in schedule.ranges):
        remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
    return Document(json.dumps(values) + "\n", tuple(remarks))


def _served_method(schedule: Schedule, config: SpeculationConfig) -> Document:
    """The configuration as it went in, to be run up to the largest batch size that was measured."""
    found = served_settings(PEER, schedule, config, METHOD_KEYS)
    if found.values is None:
        return Document(NOTHING, found.remarks)
    limit = (
        f"{config.proposer} speculates at every batch size: run the server with --max-num-seqs {found.max_batch_size}, "
        "the largest that was measured"
    )
    return Document(json.dumps(found.values) + "\n", (limit, *found.remarks))


def _off(schedule: Schedule) -> Document:
    return Document(NOTHING, tuple(off_remarks(PEER, schedule, PROPOSERS)))
