"""The engine behind the OpenAI API: a baseline and a speculative deployment of one target.

In: blocks of prompts and two server addresses.
Out: runs with the servers' counts and timings.
Imports: quality, metrics, model_folder, types, errors.
"""
