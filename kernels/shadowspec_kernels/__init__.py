"""Kernels of the engine, beneath every other package: it imports nothing of `shadowspec`.

`reference` is the specification in plain torch; `verification`, `scoring` and `appending` hold one Triton kernel
family each, and import triton; `dispatch` runs either and writes down which.
"""
