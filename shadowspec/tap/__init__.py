"""Records in: formats, sources, admission, slicing, sampling and blocks.

In: messages of Kafka, lines of files.
Out: blocks of prompts to measure, and one funnel counter for each record.
Imports: text, types, errors.
"""
