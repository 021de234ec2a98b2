"""The gate's error rates in worlds whose truth is known, through the production gate.

In: a world and a seed.
Out: false-enable rates, power and stopping times, beside naive gates.
Imports: reports, gate, tap, store, gc_control, types.
"""
