"""The demo: the closed loop on a real one-node cluster, from an empty cache to a promoted drafter version."""
