"""Every model call, rollout and reward in exactly one bin: the ledger, kept in the store."""
