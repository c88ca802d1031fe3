"""Pairwise covering samples of a feature space with forbidden pairs, and random points of it.

Role: used by cases.py to choose which combinations of features a test run sees. Greedy, one row at a
time: each row starts from a pair that no row has yet and then takes, feature by feature, the value
that meets the most such pairs. The result depends on the seed only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np

# A rule names two features and says which of their value pairs cannot be in one case.
Rule = tuple[str, str, Callable[[Any, Any], bool]]
Row = dict[str, Any]


@cache
def _members(bits: int) -> tuple[int, ...]:
    return tuple(u for u in range(bits.bit_length()) if bits >> u & 1)


def _packed(table: np.ndarray[Any, Any]) -> list[int]:
    """Each row of a table of truth values as the bits of a number."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(table, axis=1, bitorder="little")]


class Space:
    """Features (name -> values), the rules that forbid pairs of values, and the (name, value) that mask others.

    Inside, features are numbered, and the values of all features in one sequence: value u of feature i is number
    first[i] + u.
    """

    def __init__(
        self, features: Mapping[str, Sequence[Any]], rules: Sequence[Rule], masking: Container[tuple[str, Any]] = ()
    ) -> None:
        self.features = {name: tuple(values) for name, values in features.items()}
        self.names = tuple(features)
        self._index = {name: i for i, name in enumerate(self.names)}
        self._sizes = [len(values) for values in self.features.values()]
        *self._first, count = accumulate(self._sizes, initial=0)
        self._masks = [(name, value) in masking for name, values in self.features.items() for value in values]
        allowed = np.ones((count, count), bool)
        for first, second, forbids in rules:
            i, j = self._slice(first), self._slice(second)
            table = np.array([[not forbids(u, v) for v in self.features[second]] for u in self.features[first]])
            allowed[i, j] &= table
            allowed[j, i] &= table.T
        for name in self.names:
            i = self._slice(name)
            allowed[i, i] = np.eye(len(self.features[name]), dtype=bool)
        self._allowed, self._allowed_bits = allowed, _packed(allowed)

    def _slice(self, name: str) -> slice:
        i = self._index[name]
        return slice(self._first[i], self._first[i] + self._sizes[i])

    def _number(self, name: str, value: Any) -> int:
        return self._first[self._index[name]] + self.features[name].index(value)

    def allows(self, first: str, u: Any, second: str, v: Any) -> bool:
        """True if no rule forbids these two values together."""
        return bool(self._allowed[self._number(first, u), self._number(second, v)])

    @cached_property
    def _possible(self) -> np.ndarray[Any, Any]:
        """The allowed pairs without those that leave a third feature no value, until there are none of them."""
        possible, before = self._allowed.copy(), -1
        while before != possible.sum():
            before = int(possible.sum())
            for name in self.names:
                beside = possible[:, self._slice(name)].astype(np.float32)
                possible &= beside @ beside.T > 0
        return possible

    @cached_property
    def _possible_bits(self) -> list[int]:
        return _packed(self._possible)

    def _choose(
        self,
        fixed: dict[int, int],
        order: Sequence[int],
        allowed: Sequence[int],
        pick: Callable[[int, tuple[int, ...]], int],
    ) -> bool:
        """Extend fixed (feature -> value, by number) to all features; False if allowed leaves one without a value."""
        left = -1
        for i, u in fixed.items():
            if not left >> self._first[i] + u & 1:
                return False
            left &= allowed[self._first[i] + u]
        for i in order:
            if i in fixed:
                continue
            bits = left >> self._first[i] & (1 << self._sizes[i]) - 1
            if not bits:
                return False
            fixed[i] = pick(i, _members(bits))
            left &= allowed[self._first[i] + fixed[i]]
        return True

    def _row(self, chosen: Mapping[int, int]) -> Row:
        return {name: self.features[name][chosen[i]] for i, name in enumerate(self.names)}

    def random_row(self, rng: random.Random, fixed: Row, neutral: float = 0.45) -> Row:
        """A random allowed row that has the fixed values.

        neutral: how likely a feature is to keep its first value (the plain one) where that is allowed.
        """
        start = {self._index[name]: self.features[name].index(v) for name, v in fixed.items()}

        def pick(i: int, values: tuple[int, ...]) -> int:
            plain = values[0] == 0 and rng.random() < neutral
            return values[0] if plain else values[rng.randrange(len(values))]

        for _ in range(100):
            chosen = dict(start)
            order = list(range(len(self.names)))
            rng.shuffle(order)
            if self._choose(chosen, order, self._allowed_bits, pick):
                return self._row(chosen)
        raise ValueError(f"no case has {fixed}")

    def pairs(self, rng: random.Random) -> list[Row]:
        """Rows such that every two values that may meet do meet in one of them.

        A row with a value that masks others (alpha 0: A and B are not read) only counts for the pairs
        that have such a value.
        """
        missing = self._possible.copy()  # symmetric
        for name in self.names:
            missing[self._slice(name), self._slice(name)] = False
        rows: list[Row] = []
        while missing.any():
            left = np.add.reduceat(np.add.reduceat(missing, self._first, axis=0, dtype=int), self._first, axis=1)
            # The last of the pairs of features that have the most.
            i, j = divmod(left.size - 1 - int(np.triu(left)[::-1, ::-1].argmax()), len(left))
            first, second = self._slice(self.names[i]), self._slice(self.names[j])
            options = np.argwhere(missing[first, second])
            u, v = (int(x) for x in options[rng.randrange(len(options))])
            chosen = self._greedy({i: u, j: v}, missing, rng)
            numbers = [first.start + u, second.start + v] if chosen is None else self._numbers(chosen)
            counted = numbers if chosen is None else [t for t in numbers if self._masks[t]] or numbers
            missing[np.ix_(counted, numbers)] = missing[np.ix_(numbers, counted)] = False
            if chosen is not None:
                rows.append(self._row(chosen))
        return rows

    def _numbers(self, chosen: Mapping[int, int]) -> list[int]:
        return [self._first[i] + u for i, u in chosen.items()]

    def _greedy(
        self, start: dict[int, int], missing: np.ndarray[Any, Any], rng: random.Random
    ) -> dict[int, int] | None:
        masked = [t for t in self._numbers(start) if self._masks[t]]
        for _ in range(20):
            gain = missing[masked or self._numbers(start)].sum(axis=0)

            def pick(i: int, values: tuple[int, ...], gain: np.ndarray[Any, Any] = gain) -> int:
                first = self._first[i]
                values = tuple(u for u in values if not self._masks[first + u]) or values
                gains = gain[first : first + self._sizes[i]].tolist()
                most = max(gains[u] for u in values)
                best = [u for u in values if gains[u] == most]
                u = best[rng.randrange(len(best))]
                if not masked:
                    np.add(gain, missing[first + u], out=gain)
                return u

            chosen = dict(start)
            order = list(range(len(self.names)))
            rng.shuffle(order)
            if self._choose(chosen, order, self._possible_bits, pick):
                return chosen
        return None
