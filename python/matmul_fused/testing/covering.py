"""Pairwise covering samples of a feature space with forbidden pairs, and random points of it.

Role: used by cases.py to choose which combinations of features a test run sees. Greedy, one row at a
time: each row starts from a pair that no row has yet and then takes, feature by feature, the value
that meets the most such pairs. The result depends on the seed only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

# A rule names two features and says which of their value pairs cannot be in one case.
Rule = tuple[str, str, Callable[[Any, Any], bool]]
Row = dict[str, Any]


class Space:
    """Features (name -> values), the rules that forbid pairs of values, and the (name, value) that mask others."""

    def __init__(
        self, features: Mapping[str, Sequence[Any]], rules: Sequence[Rule], masking: Container[tuple[str, Any]] = ()
    ) -> None:
        self.features = {name: tuple(values) for name, values in features.items()}
        self.names = tuple(features)
        self._index = {name: i for i, name in enumerate(self.names)}
        self._sizes = [len(values) for values in self.features.values()]
        self._masks = [np.array([(name, v) in masking for v in features[name]]) for name in features]
        self._allowed: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
        self._linked: list[set[int]] = [set() for _ in self.names]
        for first, second, forbids in rules:
            i, j = self._index[first], self._index[second]
            table = np.array([[not forbids(u, v) for v in self.features[second]] for u in self.features[first]])
            self._allowed[i, j] = self._allowed.get((i, j), True) & table
            self._allowed[j, i] = self._allowed[i, j].T
            self._linked[i].add(j)
            self._linked[j].add(i)

    def allows(self, first: str, u: Any, second: str, v: Any) -> bool:
        """True if no rule forbids these two values together."""
        i, j = self._index[first], self._index[second]
        if (i, j) not in self._allowed:
            return True
        return bool(self._allowed[i, j][self.features[first].index(u), self.features[second].index(v)])

    def _choose(self, fixed: dict[int, int], order: Sequence[int], pick: Callable[..., int]) -> bool:
        """Extend fixed (feature -> value, by number) to all features; False if the rules leave none."""
        masks = [np.ones(size, bool) for size in self._sizes]

        def take(i: int, u: int) -> None:
            fixed[i] = u
            for j in self._linked[i]:
                masks[j] &= self._allowed[i, j][u]

        for i, u in list(fixed.items()):
            if not masks[i][u]:
                return False
            take(i, u)
        for i in order:
            if i in fixed:
                continue
            values = np.flatnonzero(masks[i])
            if not len(values):
                return False
            take(i, pick(i, values))
        return True

    def _row(self, chosen: Mapping[int, int]) -> Row:
        return {name: self.features[name][chosen[i]] for i, name in enumerate(self.names)}

    def random_row(self, rng: random.Random, fixed: Row, neutral: float = 0.45) -> Row:
        """A random allowed row that has the fixed values.

        neutral: how likely a feature is to keep its first value (the plain one) where that is allowed.
        """
        start = {self._index[name]: self.features[name].index(v) for name, v in fixed.items()}

        def pick(i: int, values: np.ndarray[Any, Any]) -> int:
            plain = values[0] == 0 and rng.random() < neutral
            return int(values[0] if plain else values[rng.randrange(len(values))])

        for _ in range(100):
            chosen = dict(start)
            order = list(range(len(self.names)))
            rng.shuffle(order)
            if self._choose(chosen, order, pick):
                return self._row(chosen)
        raise ValueError(f"no case has {fixed}")

    def pairs(self, rng: random.Random) -> list[Row]:
        """Rows such that every two values that may meet do meet in one of them.

        A row with a value that masks others (alpha 0: A and B are not read) only counts for the pairs
        that have such a value.
        """
        count = len(self.names)
        missing = {
            (i, j): self._allowed.get((i, j), np.ones((self._sizes[i], self._sizes[j]), bool)).copy()
            for i in range(count)
            for j in range(count)
            if i != j
        }
        rows: list[Row] = []
        while True:
            left = {key: table for key, table in missing.items() if key[0] < key[1] and table.any()}
            if not left:
                return rows
            i, j = max(left, key=lambda key: (int(left[key].sum()), key))
            options = np.argwhere(left[i, j])
            u, v = (int(x) for x in options[rng.randrange(len(options))])
            chosen = self._greedy({i: u, j: v}, missing, rng)
            missing[i, j][u, v] = missing[j, i][v, u] = False  # also if it cannot be completed
            if chosen is None:
                continue
            rows.append(self._row(chosen))
            masked = [a for a, value in chosen.items() if self._masks[a][value]]
            for a in masked or range(count):
                for b in (b for b in range(count) if b != a):
                    missing[a, b][chosen[a], chosen[b]] = missing[b, a][chosen[b], chosen[a]] = False

    def _greedy(
        self,
        start: dict[int, int],
        missing: Mapping[tuple[int, int], np.ndarray[Any, Any]],
        rng: random.Random,
    ) -> dict[int, int] | None:
        masked = [i for i, u in start.items() if self._masks[i][u]]

        def pick(i: int, values: np.ndarray[Any, Any], chosen: Mapping[int, int]) -> int:
            plain = values[~self._masks[i][values]]
            values = plain if len(plain) else values
            gain = sum(missing[j, i][chosen[j]] for j in masked or chosen)[values]
            best = values[gain == gain.max()]
            return int(best[rng.randrange(len(best))])

        for _ in range(20):
            chosen = dict(start)
            order = list(range(len(self.names)))
            rng.shuffle(order)
            if self._choose(chosen, order, lambda i, values, chosen=chosen: pick(i, values, chosen)):
                return chosen
        return None
