"""The published numbers of the five papers, and what each row of their tables is here."""

from fedtailor.papers.published import Row, published, words_of

__all__ = ["Row", "published", "words_of"]
