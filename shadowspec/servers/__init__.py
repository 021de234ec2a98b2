"""The engine behind the OpenAI API: a baseline and speculative deployments of one target.

In: blocks of prompts and the servers' addresses.
Out: runs with the servers' counts and timings.
Imports: quality, metrics, model_folder, types, errors.
"""
