"""The head by Triton kernels: votes lie in memory once, after the CRF, and nothing else of their size does."""
