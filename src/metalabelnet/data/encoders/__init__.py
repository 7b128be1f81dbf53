"""Encoders that turn images, table rows and texts into tensors."""
