"""Drivers: mdgraph's potentials under the interfaces of other programs."""
