"""One page each, with one public function `page()`.

In: the shared parts and what the viewer chose.
Out: pages.
Imports: config, reports, rollout, gate, store, text, types, errors.
"""
