"""The roles of the deployed services and their login."""

from __future__ import annotations

ROLES = {"owner": "shadow_owner", "worker": "shadow_worker", "scheduler": "shadow_scheduler",
         "reader": "shadow_reader", "operator": "shadow_operator"}  # fmt: skip
LOGIN = """
[auth]
redirect_uri = "https://shadowspec.example.com/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "shadowspec"
client_secret = "hush"
server_metadata_url = "https://login.example.com/.well-known/openid-configuration"
"""
