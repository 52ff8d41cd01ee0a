"""Custom resource models; the CRDs are generated from them."""
