"""Tests of the store, on both dialects."""
