"""What is measured of a model: predictions, metrics, known labels, reports."""
