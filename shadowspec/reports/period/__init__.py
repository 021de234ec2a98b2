"""Reports on a span of time: what changed in it, how things stood at its end, and what is still open."""
