"""Tests of the way in from Kafka, on a real broker."""
