"""Semantic Softmax, calibration and human alignment for lm-evaluation-harness.

Nothing is imported here: whoever imports `lm_eval` passes through this file (see `plugin.py`).
"""

__version__ = "0.1.0"
