"""The gate's own error rates, simulated through the real folding and gate code."""
