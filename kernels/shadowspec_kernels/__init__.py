"""Kernels of the engine and their torch counterparts, which are their specification.

In: tensors.
Out: tensors, and which backend ran.
Imports: nothing.

`reference` is the specification in plain torch; `verification`, `scoring` and `appending` hold one Triton kernel
family each, and import triton; `dispatch` runs either and writes down which.  `llama_cpu` runs a Llama on a CPU in C++
that is compiled where it runs (`building`), and `llama_reference` is its specification.
"""
