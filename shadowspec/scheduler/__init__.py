"""Runs gates and sends reports when they are due: one scheduler leads, others stand by."""
