"""The gate's statistics: pure, no I/O."""
