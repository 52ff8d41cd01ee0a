"""The rollout state machine: pure, with time passed in."""
