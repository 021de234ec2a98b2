"""Tests of deploy/: the manifests, their commands run as written, and what they let a pod reach."""
