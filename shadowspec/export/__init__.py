"""Serving configuration from the standing decisions, one module per peer.

Whatever the peer, something is switched on only by an ENABLE that stands, is fresh and is not overridden; where a
peer cannot express where that holds, it is exported as off.
"""

from shadowspec.export.document import Document, Format
from shadowspec.export.schedule import BatchRange, Schedule, endpoint_schedule, slice_schedules
from shadowspec.export.standing import Off, Standing, evidence_times, judge_decisions

__all__ = [
    "BatchRange",
    "Document",
    "Format",
    "Off",
    "Schedule",
    "Standing",
    "endpoint_schedule",
    "evidence_times",
    "judge_decisions",
    "slice_schedules",
]
