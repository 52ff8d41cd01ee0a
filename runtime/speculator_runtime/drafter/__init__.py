"""The EAGLE-3 drafter: module, checkpoint format, vocabulary map, digests."""
