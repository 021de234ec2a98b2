"""ShadowSpec: shadow-mode traffic analyzer and statistical rollout gate for speculative decoding.

In: mirrored requests, a configuration and models.
Out: verdicts, reports and serving configuration.
Imports: shadowspec_kernels.
"""
