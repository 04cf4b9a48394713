"""Helpers of the repository itself: not part of the package."""
