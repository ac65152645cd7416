"""The Python behind the YAMLs in ``task_configs``: data sources, loaders and metrics."""

from lm_eval_semsoft.logs import join_harness_log

join_harness_log()
