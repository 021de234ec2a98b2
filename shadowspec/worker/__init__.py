"""Measuring a stream of mirrored records: from consumed messages to stored rows."""
