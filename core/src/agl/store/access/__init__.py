"""Who may do what: tokens for a role and a scope, and what each role may."""
