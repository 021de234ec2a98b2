"""The live guard: compares the counters of production servers with the shadow's promise.

In: metric pages of serving engines, and enabled decisions.
Out: windows of counts, alarms and overrides, and whether production obeys these.
Imports: gate, servers, store, metrics, text, types.
"""
