"""Builders of test data: what test modules share, and no test."""
