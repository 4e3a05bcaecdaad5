"""Ablations: models and seeds trained under the same conditions, and a report of their results."""
