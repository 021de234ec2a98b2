"""One slice at one load with one config, as the cost model takes it, and as it was measured.

The whole endpoint is the mixture of its slices, and no cell of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from shadowspec import metrics
from shadowspec.cost_model import Drafts
from shadowspec.frontier import Work
from shadowspec.reports import tally
from shadowspec.reports.costs import DeviceTime, device_time
from shadowspec.reports.tally import Tally
from shadowspec.store import GroupSums

NO_TIME: Final = DeviceTime()


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """One slice at one load with one config: what prediction needs of it, and what was measured; pooled figures."""

    slice_key: str
    concurrency: int
    fingerprint: str
    num_requests: int
    num_plain_steps: int  # in which nothing was drafted
    mean_acceptance_length: float | None
    work: Work | None
    ratio_of_total_times: float | None
    num_drafts: int = 0  # steps that drafted
    num_drafted_tokens: int = 0  # in these, with those cut off at the end
    target_passes_saved: float | None = None  # of a request, mean
    device: DeviceTime = NO_TIME

    @property
    def tokens_per_step(self) -> float | None:
        """The mean acceptance length, with the steps that drafted nothing counted in."""
        length, steps = self.mean_acceptance_length, self.num_drafts + self.num_plain_steps
        if length is None or not self.num_plain_steps:
            return length
        drafting = metrics.ratio(self.num_drafts, steps)
        return None if drafting is None else 1.0 + (length - 1.0) * drafting

    @property
    def drafts(self) -> Drafts | None:
        """How often and how deep a row drafted; None where nothing was."""
        share = metrics.ratio(self.num_drafts, self.num_drafts + self.num_plain_steps)
        tokens = metrics.ratio(self.num_drafted_tokens, self.num_drafts)
        return None if share is None or tokens is None else Drafts(share, tokens)


def cells_of_groups(groups: Iterable[GroupSums]) -> list[MeasuredCell]:
    """The cells of grouped sums over all of the time."""
    found = []
    for own in groups:
        pooled = Tally.of_sums(own.sums)
        num_counted = own.sums.num_runs - own.sums.num_failed
        found.append(
            MeasuredCell(
                slice_key=own.slice_key,
                concurrency=own.concurrency,
                fingerprint=own.fingerprint,
                num_requests=num_counted,
                num_plain_steps=own.sums.num_plain_steps,
                mean_acceptance_length=tally.mean_acceptance_length(pooled),
                work=work_of(own.sums.num_prompt_tokens, own.sums.num_output_tokens, num_counted),
                ratio_of_total_times=tally.ratio_of_total_times(pooled),
                num_drafts=own.sums.num_drafts,
                num_drafted_tokens=own.sums.num_draft_tokens + own.sums.num_cut_draft_tokens,
                target_passes_saved=passes_saved(
                    own.sums.num_output_tokens, own.sums.num_drafts + own.sums.num_plain_steps, num_counted
                ),
                device=device_time([own]),
            )
        )
    return found


def passes_saved(num_output_tokens: int, num_steps: int, num_requests: int) -> float | None:
    """Target passes saved by a request on average: each has one more than its steps, the prefill."""
    return metrics.ratio(num_output_tokens - num_steps - num_requests, num_requests)


def work_of(num_prompt_tokens: int, num_output_tokens: int, num_requests: int) -> Work | None:
    """The mean request of so many; None of none."""
    prompt, output = (metrics.ratio(tokens, num_requests) for tokens in (num_prompt_tokens, num_output_tokens))
    return None if prompt is None or output is None else Work(prompt, output)
