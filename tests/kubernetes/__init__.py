"""The manifests on a Kubernetes of one node: `make test-kubernetes`."""
