"""Graph rewrites: operators replaced by equivalent ones that compile to faster kernels."""
