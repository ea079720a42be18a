"""What a store has to make and read tokens with."""

from agl.store.access.tokens import Grant, Role, Tokens


class IssuesTokens:
    """Makes the tokens of a store, in the process that owns it."""

    _tokens: Tokens | None = None

    @property
    def tokens(self) -> Tokens:
        """Knows the secret."""
        # Made when first asked for: processes that were forked before do not have the secret.
        return self._tokens or vars(self).setdefault("_tokens", Tokens())

    @tokens.setter
    def tokens(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def issue_token(
        self, role: Role, rollout_id: str = "", attempt_id: str = "", seconds: float | None = None
    ) -> str:
        """Make a token.

        Args:
            role: What it allows; see ``agl.store.access.rules``.
            rollout_id: Of roles ``attempt`` and ``model``, which need both ids.
            attempt_id: The same.
            seconds: How long it is good for; None for as long as the store is there.

        Raises:
            ConfigError: No such role, or ids where none belong, or none where they do.
        """
        return self.tokens.issue(role, rollout_id, attempt_id, seconds=seconds)

    async def read_token(self, token: str) -> Grant | None:
        """What a token of this store allows; None for any other."""
        return self.tokens.read(token)
