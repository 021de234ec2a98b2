"""Tests of the quality of outputs."""
