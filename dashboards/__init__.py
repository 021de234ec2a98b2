"""The rollout dashboard: Streamlit pages over the store's reads and `shadowspec.reports`.

Pages hold no SQL and no statistics.  The folder is installed as `shadowspec._dashboards`; `app.py` gives it that name
in a checkout too, so that its modules import each other relatively and are loaded once.
"""
