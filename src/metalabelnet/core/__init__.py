"""Mathematics on tensors: losses, label net, meta-gradient, Algorithm 1, noise matrices, calibration."""
