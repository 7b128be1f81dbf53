"""The mathematics: losses, the label net, the meta-gradient and Algorithm 1. Needs torch alone."""
