"""Measurements of a model: predictions, metrics, known labels, reports.

`contextcaps.evaluate`, which opens a run and its data first, is `contextcaps.training.evaluate`.
"""
