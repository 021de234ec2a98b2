"""Serving configuration from current decisions, one module for each engine or format.

In: current decisions, overrides and rollouts.
Out: files for vLLM, SGLang, TensorRT-LLM, llama.cpp, ModelOpt and flagd.
Imports: gate, metrics, text, types, errors.
"""
