"""The S3 ledger."""
