"""Measurements of a model: predictions, metrics, known labels, reports."""
