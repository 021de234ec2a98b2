"""The statistical gate: pure functions from stored rows to verdicts (numpy and scipy, no I/O, no torch)."""
