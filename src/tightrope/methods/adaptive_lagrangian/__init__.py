"""The default for networks: Adam on the Lagrangian, with multipliers by a self-tuned proportional-integral rule."""

from .method import AdaptiveLagrangian

__all__ = ["AdaptiveLagrangian"]
