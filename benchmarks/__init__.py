"""Speed, as ratios: one command a comparison, see benchmarks/README.md."""
