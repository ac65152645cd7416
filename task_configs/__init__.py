"""The task YAMLs. A package only so that the harness can find this folder by a dotted name."""
