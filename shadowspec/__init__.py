"""ShadowSpec: shadow-mode traffic analyzer and statistical rollout gate for speculative decoding."""
