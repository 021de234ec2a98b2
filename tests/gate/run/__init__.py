"""Tests of a gate run."""
