"""The way in: sources of mirrored records, the adapter that reads them, admission, and blocks to measure."""
