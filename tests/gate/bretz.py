"""Levels by a graph, naively: the algorithm of Bretz, Maurer, Brannath and Posch (2009), step by step and exact.

A graph has a weight at each hypothesis and, on each edge, the part of it that a rejection passes on.  After each
rejection both are worked out again; production has the outcome in closed form.
"""

from __future__ import annotations

from fractions import Fraction

Node = tuple[str, int]  # "endpoint" or "slot", and its number


class Graph:
    """`num_endpoints` pairs of load and candidate of the whole endpoint, and `num_slots` slices."""

    def __init__(self, num_endpoints: int, num_slots: int) -> None:
        endpoints: list[Node] = [("endpoint", number) for number in range(num_endpoints)]
        slots: list[Node] = [("slot", number) for number in range(num_slots)]
        half = Fraction(1, 2)
        self.weights = dict.fromkeys(endpoints, (half if slots else 1) / Fraction(num_endpoints))
        self.weights |= dict.fromkeys(slots, half / max(num_slots, 1))
        self._edges = {(one, other): Fraction(1, num_slots) for one in endpoints for other in slots}
        self._edges |= {(one, other): Fraction(1, num_slots - 1) for one in slots for other in slots if one != other}

    def reject(self, rejected: Node) -> Graph:
        """Pass the weight of a hypothesis on, and take it out of the graph."""
        passed, part = self.weights.pop(rejected), self._part
        edges: dict[tuple[Node, Node], Fraction] = {}
        for one in self.weights:
            self.weights[one] += passed * part(rejected, one)
            loop = part(one, rejected) * part(rejected, one)
            for other in self.weights:
                if one != other and loop < 1:
                    edges[one, other] = (part(one, other) + part(one, rejected) * part(rejected, other)) / (1 - loop)
        self._edges = edges
        return self

    def _part(self, one: Node, other: Node) -> Fraction:
        return self._edges.get((one, other), Fraction(0))
