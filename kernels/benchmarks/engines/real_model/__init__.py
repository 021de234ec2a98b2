"""A public language model, measured as a user would: its weights, prompts, candidates, engines, results and page."""
