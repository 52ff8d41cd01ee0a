"""Custom resource models; the CRDs are generated from them (`python -m speculator_operator.api.crds`)."""
