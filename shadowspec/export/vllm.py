"""vLLM: the JSON of `--speculative-config`.

Read in vLLM's source (fields, versions and licence: tests/data/peers/vllm.json), and relied upon here:
- the ranges of `num_speculative_tokens_per_batch_size` are inclusive, begin at 1 and do not overlap; a batch size
  that none of them holds gets the depth of the range before it, so that every off is written out, the last
  without end;
- depths are cut to `num_speculative_tokens`;
- with data parallelism the ranges are dropped with a warning and the full depth runs at every batch size;
- an unknown key is refused, so that no decision id can be written.
"""

from __future__ import annotations

import json

from shadowspec.export.document import Document
from shadowspec.export.schedule import Schedule
from shadowspec.types import VerifyRule

MAX_BATCH_SIZE = 2**31 - 1  # stands for a range without end
DATA_PARALLEL = (
    "with --data-parallel-size above 1 vLLM drops the batch-size ranges and speculates at every batch size: "
    "do not use this there"
)
NGRAM = "vLLM looks an n-gram up in its own way: its proposals may differ from those that were measured"


def render(schedule: Schedule) -> Document:
    """The value of `--speculative-config`; `null` where nothing is on."""
    if schedule.config is None:
        return Document("null\n")
    config = schedule.config
    values: dict[str, object] = {"num_speculative_tokens": schedule.max_num_speculative_tokens}
    remarks = [DATA_PARALLEL]
    if config.proposer == "ngram":
        values |= {"method": "ngram", "prompt_lookup_min": config.ngram_min, "prompt_lookup_max": config.ngram_max}
        remarks.append(NGRAM)
    else:
        is_sampling = config.verify_rule is VerifyRule.REJECTION
        values |= {
            "method": config.proposer,
            "model": config.draft,
            "draft_sample_method": "probabilistic" if is_sampling else "greedy",
        }
    values["num_speculative_tokens_per_batch_size"] = [
        [each.first, each.last or MAX_BATCH_SIZE, each.num_speculative_tokens] for each in schedule.ranges
    ]
    return Document(json.dumps(values) + "\n", tuple(remarks))
