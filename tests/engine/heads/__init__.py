"""Draft heads over the target's hidden states."""
