"""Kernels of the engine and their torch references, which are their specification.

In: tensors.
Out: tensors, and which backend ran.
Imports: nothing.

`reference` is the specification in plain torch; `verification`, `scoring` and `appending` hold one Triton kernel
family each, and import triton; `dispatch` runs either and records which.  `llama_cpu` runs a Llama on a CPU in C++ that
is compiled on the same machine (`building`), and `llama_reference` is its specification.
"""
