"""What an adversary is made of, as far as an audit has to know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from saddlepoint.defenses import Access


@dataclass(frozen=True)
class AdversaryProperties:
    """Facts about an adversary and all adversaries inside it."""

    needs: Access  # the access to the attacked defense
    transfers: bool = False  # its points are computed on another model
    approximate_backward: bool = False  # BPDA, phantom gradients or SPSA replace a backward pass
    score_differences: bool = False  # gradients are estimated from differences of scores
    custom_rules: bool = False  # it sets a gradient rule at a named site
    handles_randomness: bool = False  # it averages over random draws, or fixes them
    anticipates_adaptation: bool = False  # it attacks models that the defense may adapt to
    through_adaptation: bool = False  # it differentiates through the adaptation
    other_views: bool = False  # it aims at more than the last view
    restarts: bool = False  # it repeats a run with other random keys
    minimum_norm: bool = False  # one run of it minimizes the perturbation, not a loss
    query_search: bool = False  # it searches with queries and stops when the budget is used up
    continues_search: bool = False  # it runs gradient steps from where a query search ended
    searches_on: bool = False  # it searches with queries from where gradient steps ended
    clean_fallback: bool = False  # it proposes the clean image where it does not succeed
    external: bool = False  # its points come from elsewhere, so how they were found is not known

    @property
    def white_box(self) -> bool:
        """It follows gradients of the attacked defense, from the clean image on."""
        known = not self.transfers and not self.external
        searches = self.continues_search or self.searches_on
        return self.needs == "gradient" and known and not searches

    @property
    def black_box(self) -> bool:
        """It finds its points with queries of the attacked defense, not with gradients."""
        queries = self.needs != "gradient" or self.searches_on
        return queries and not self.transfers and not self.external

    @classmethod
    def union(cls, needs: Access, parts: Sequence[AdversaryProperties]) -> AdversaryProperties:
        """A property holds if it holds for any part."""
        names = [field.name for field in fields(cls) if field.name != "needs"]
        return cls(needs, **{name: any(getattr(part, name) for part in parts) for name in names})
