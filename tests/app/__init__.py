"""Tests of use cases."""
