"""Pure reconciliation: an observed snapshot in, desired objects, plans, status and events out."""
