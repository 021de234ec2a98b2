"""Tests of what is shipped: wheel, editable install, container files."""
