"""The published numbers of the five papers, and the runs that reproduce each row of their tables."""

from fedtailor.papers.published import PublishedNumber, overrides_of, published

__all__ = ["PublishedNumber", "overrides_of", "published"]
