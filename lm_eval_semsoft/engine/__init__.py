"""Prompts in, readouts out: every prompt is read once, and everything else is computed from that.

`plan` decides which tokens to run together, `forward` runs them, `readout` is the record of an
answer position, `labels` knows how a label set is spelled, `embeddings` finds the output
embeddings, `store` keeps readouts on disk and `recorder` reads through it. This package knows
transformers and `core`, and nothing of lm_eval.
"""
