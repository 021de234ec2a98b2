"""A large synthetic store: what a year-old installation looks like to the dashboard, without its models or traffic.

Nothing in it was measured.  Runs are drawn from a made-up world (`world`), added up into rollups as the store adds
up real ones (`traffic`), and a thinned share of them is decided on by the gate (`looks`), so that every
bound and verdict is what the gate says of such units.  Each config carries `DATA_NOTE` in the store itself.
"""

from __future__ import annotations

from typing import Final

DATA_NOTE: Final = (
    "Synthetic: drawn from a made-up world to try the dashboard at scale. Nothing here was measured, on any model or "
    "traffic. The gate decided on a thinned share of the drawn runs."
)
