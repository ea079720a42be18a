"""What operations did that somebody outside of them may wait for."""


class Effects:
    """Of one operation, or of several."""

    __slots__ = ("dequeued", "ended", "limits", "queued")

    def __init__(self) -> None:
        self.queued = 0
        """Rollouts that entered the queue."""
        self.dequeued = 0
        """Rollouts that left it."""
        self.ended: list[str] = []
        """Rollouts that reached a final status."""
        self.limits = False
        """Whether a record now has a deadline, so that a watchdog must look."""

    def add(self, other: "Effects") -> None:
        """Take over what another operation did."""
        self.queued += other.queued
        self.dequeued += other.dequeued
        self.ended += other.ended
        self.limits = self.limits or other.limits
