"""Tests of the live guard."""
