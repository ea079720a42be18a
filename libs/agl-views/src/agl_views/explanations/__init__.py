"""A rollout as people read it, and why each of its tokens got its advantage."""
