"""The parts of `validate_llamacpp.py`: our acceptance against llama.cpp's own."""
