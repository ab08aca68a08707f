"""Sparse training: networks that are sparse from the first update (RLx2, arXiv 2205.15043)."""

from learner_service.sparsity.flops import Cost, Flops
from learner_service.sparsity.network_sparsity import METHODS, NetworkSparsity, check_same_topology
from learner_service.sparsity.topology import Topology

__all__ = ["METHODS", "Cost", "Flops", "NetworkSparsity", "Topology", "check_same_topology"]
