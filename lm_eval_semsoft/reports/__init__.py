"""Floor 4: questions that readouts answer. Nothing here runs a model."""
