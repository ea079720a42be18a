"""Runs tasks through the store and reads what came of them: rewards, rows, the ledger."""
