"""All claims, by study."""

from __future__ import annotations

from restack.studies import claims_drop, claims_duplicate, claims_reinit, claims_successors
from restack.studies.claim import Claim

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "duplicate": claims_duplicate.CLAIMS,
    "drop": claims_drop.CLAIMS,
    "reinit": claims_reinit.CLAIMS,
    **claims_successors.CLAIMS,
}
