"""Tests of the dashboard's pages, without a browser."""
