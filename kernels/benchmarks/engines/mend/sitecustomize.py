"""Run by vLLM's interpreters at their start, as this folder is on their PYTHONPATH."""

from vllm_cpu_expand import install

install()
