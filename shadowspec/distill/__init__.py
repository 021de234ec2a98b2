"""Trains a draft on its target's logged answers.

In: logged responses of an endpoint, a target and a draft.
Out: a draft folder with a model card, and its gain on held-out sessions.
Imports: engine, metrics, text, types, errors.
"""
