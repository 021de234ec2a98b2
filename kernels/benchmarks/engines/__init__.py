"""The parts of `validate_vllm.py`: our acceptance and our predicted speedups against vLLM's own."""
