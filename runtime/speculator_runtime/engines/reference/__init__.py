"""The reference engine: small, in PyTorch, lossless."""
