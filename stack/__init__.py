"""From raw robot recordings to a fine-tuned pi0.5 policy: reproducibly, offline, checked at every step."""

__version__ = "0.1.0"
