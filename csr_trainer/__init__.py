"""Train a model whose agreement with itself means that it is right.

Calibration with Semantic Reward (CSR, arXiv 2605.15588) on TRL's GRPOTrainer, with its baselines.

- `rewards`: the formulas, and the callables that TRL calls;
- `schedule`: how much the calibration reward counts at a step of training;
- `groups`: all rollouts of one question in one place, over all processes;
- `data`: training questions.

None of these needs TRL. The package knows lm_eval_semsoft, which knows nothing of it.
"""
