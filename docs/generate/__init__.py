"""The parts of the reference that are made from code: `python -m docs.generate` writes them into their pages.

A page holds each part between two comments that name it; what is around them is prose, written by hand.
"""
