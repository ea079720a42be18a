"""What ``agl doctor`` does: run one rollout for real, and say what could be learned from it."""
