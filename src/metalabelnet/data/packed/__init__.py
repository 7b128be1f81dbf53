"""Packed images: all images of a data set in a few large files, read on demand during training."""
