"""The Docker deployment, run: `make test-compose`."""
