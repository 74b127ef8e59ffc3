"""The published numbers of the five papers, and the runs that reproduce each row of their tables."""

from fedtailor.papers.published import PublishedNumber, published, words_of

__all__ = ["PublishedNumber", "published", "words_of"]
