"""Floor 3: language models for the harness (subclasses of lm_eval's `LM`), and the demo models."""
