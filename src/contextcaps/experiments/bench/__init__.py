"""Benchmarks of the capsule head: time and memory of each way to compute it, beside the floor of the machine."""
