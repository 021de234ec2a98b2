"""The Streamlit dashboard: one file for each page, over shared parts.

In: a store and a configuration, both read only, and the kill switch's form.
Out: pages.
Imports: config, reports, rollout, planning, gate, store, metrics, text, types, errors.

Pages hold no SQL and no statistics.  The folder is installed as `shadowspec._dashboards`; `app.py` gives it that name
in a checkout too, so that its modules import each other relatively and are loaded once.
"""
