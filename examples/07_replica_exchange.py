"""Replica exchange: the heat capacity of water from replicas between two temperatures.

python examples/07_replica_exchange.py --replicas 8 --steps 20000

Replicas of 27 molecules at temperatures of their own run side by side as one simulation and
trade their baths. The slope of the mean energy over the ladder is the potential part of the
heat capacity; nine harmonic coordinates of a molecule would have 4.5 k. The picture,
ladder.png, shows how replicas walked over the temperatures, and the energies.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.engine.replicas import ReplicaExchange, replica_simulation
from mdgraph.io.structures import read_system
from mdgraph.units import BOLTZMANN

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"


class Energies:
    """A reporter that sorts potential energies by temperature."""

    def __init__(self, exchange: ReplicaExchange) -> None:
        self.interval = exchange.interval
        self.rows: list[np.ndarray] = []
        self.walks: list[np.ndarray] = []
        self._exchange = exchange

    def report(self, simulation: Simulation) -> None:
        states = self._exchange.states.numpy()
        energies = np.empty(len(states))
        energies[states] = simulation.observables().potential_energy.numpy() / 27
        self.rows.append(energies)
        self.walks.append(states)


def main() -> None:
    parser = argparse.ArgumentParser(description="Heat capacity of 27 molecules of water.")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--coldest", type=float, default=300.0, help="K")
    parser.add_argument("--hottest", type=float, default=360.0, help="K")
    parser.add_argument("--steps", type=int, default=2000, help="of 0.5 fs")
    parser.add_argument("--exchange", type=int, default=20, help="steps between exchanges")
    arguments = parser.parse_args()

    kelvins = np.geomspace(arguments.coldest, arguments.hottest, arguments.replicas)
    replicas = [read_system(WATER)] * arguments.replicas
    bath = LangevinMiddle(0.5, kelvins.tolist(), friction=5.0)
    simulation = replica_simulation(replicas, "water-pbe0", bath, seed=1)
    exchange = ReplicaExchange(simulation, arguments.exchange)
    energies = Energies(exchange)
    simulation.reporters += [exchange, energies]
    simulation.run(arguments.steps)

    record = exchange.record
    rate = sum(record.accepted) / sum(record.attempted)
    print(f"{rate:.0%} of {sum(record.attempted)} exchanges were accepted, with")
    print(f"{sum(record.round_trips)} round trips from the coldest bath to the hottest and back.")
    rows = np.array(energies.rows)
    means = rows[len(rows) // 4 :].mean(0)  # the first quarter is left to settle
    slope = np.polyfit(kelvins, means, 1)[0]
    print(f"The potential part of the heat capacity is {slope / BOLTZMANN:.1f} k a molecule.")
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    time = 5e-4 * arguments.exchange * np.arange(1, len(rows) + 1)
    left.plot(time, kelvins[np.array(energies.walks)], drawstyle="steps-post")
    left.set(xlabel="time, ps", ylabel="temperature of a replica, K")
    right.plot(kelvins, 1e3 * (means - means[0]), "o-")
    right.set(xlabel="temperature, K", ylabel="potential energy, meV a molecule")
    figure.savefig("ladder.png", dpi=150)


if __name__ == "__main__":
    main()
