"""Tests of the promises; `services` starts what they need for real."""
