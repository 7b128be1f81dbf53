"""Label snapshots over training, label correction, the label table and its quality."""
