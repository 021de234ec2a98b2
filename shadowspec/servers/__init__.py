"""Measuring through servers behind the OpenAI API: a baseline and a speculative deployment of the same target."""
