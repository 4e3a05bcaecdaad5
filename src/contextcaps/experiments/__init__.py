"""Plans of many runs: ablations, the demo, benchmarks, and pictures of what came of them."""
