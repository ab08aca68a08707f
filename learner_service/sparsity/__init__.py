"""Networks that are sparse from the first update on (RLx2, arXiv 2205.15043)."""

from learner_service.sparsity.plan import METHODS, SparsityPlan, check_supported
from learner_service.sparsity.topology import Topology

__all__ = ["METHODS", "SparsityPlan", "Topology", "check_supported"]
