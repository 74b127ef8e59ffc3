"""The published numbers of the five papers, and what each row of their tables is here."""

from fedtailor.papers.published import PublishedNumber, published, words_of

__all__ = ["PublishedNumber", "published", "words_of"]
