from .rollouts_by_hand import collected, ended

__all__ = ["collected", "ended"]
