"""The papers' headline claims, the runs that test each of them, and the verdicts."""

from fedtailor.papers.claims.claim import ArmPair, Claim, claims, in_order
from fedtailor.papers.claims.evidence import Evidence, evidence_of

__all__ = ["ArmPair", "Claim", "Evidence", "claims", "evidence_of", "in_order"]
