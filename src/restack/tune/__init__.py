"""Bring a re-stacked model to a task: training, ensembles, distillation, and what it costs."""
