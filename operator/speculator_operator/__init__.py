"""The operator: turns Speculators into pods and plans, and decides on drafter versions."""
