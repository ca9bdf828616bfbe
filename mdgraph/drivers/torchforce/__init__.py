"""TorchForce: exports potentials as TorchScript, for releases of OpenMM that load it."""

from mdgraph.drivers.torchforce.export import export_torchforce

__all__ = ["export_torchforce"]
