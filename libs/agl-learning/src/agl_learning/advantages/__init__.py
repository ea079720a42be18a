"""How much each model call counts: estimators over the rewards of its group."""
