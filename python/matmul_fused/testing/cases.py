"""The one list of cases that the tests, `python -m matmul_fused check` and the benches run.

Role: says WHAT is called: a Case is a point in the space of FEATURES, with an id that can be read and
parsed back. inputs.py makes the arrays of a case, reference.py knows the right result.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from .covering import Rule, Space
from .formulas import ACTIVATIONS, GATED, spellings
from .gpu_cases import IN_CHUNKS, PRESHUFFLE, SIZES, TAKES, TILED, TILED_CHUNKS, TILED_OF, TILED_SHUFFLED
from .rounding import DTYPES, have_bfloat16

# Leading axes of A and B; "vector": a 1-D operand.
BATCHES: dict[str, tuple[Any, Any]] = {
    "": ((), ()),
    "2": ((2,), (2,)),
    "a": ((3,), ()),
    "b": ((), (2,)),
    "ones": ((1, 2), (1, 1)),
    "broadcast": ((2, 1), (1, 2)),
    "rank5": ((2, 1, 1), (1, 2, 1)),
    "rank8": ((1, 2, 1, 1, 2, 1), (1, 2, 1, 1, 1)),
    "inner": ((2,), (2,)),  # in memory the batch axis lies between rows and columns, out included
    "empty": ((2, 0), (2, 0)),
    "empty_b": ((), (0,)),
    "vector_a": ("vector", ()),
    "vector_b": ((), "vector"),
    "vectors": ("vector", "vector"),
    "vector_a_batch": ("vector", (2,)),
    "vector_b_batch": ((2,), "vector"),
}
PLAIN_ACTIVATIONS, GATED_ACTIVATIONS = spellings(ACTIVATIONS), spellings(GATED)
# Every epilogue computes all activations in one loop: the later ones need not meet every size.
_LATER = {*spellings(ACTIVATIONS, after="clamp"), *spellings(GATED, after="swiglu_oai")}
_LATER_SIZES = (1, 7, 17, 64, 127)
INPUT_VIEWS = (
    "plain", "offset", "padded", "sliced", "negative", "negative_rows", "zero_rows", "zero_columns",
)  # fmt: skip
OUTPUT_VIEWS = ("plain", "offset", "padded", "sliced", "negative", "transposed")

# Every feature and its values; the first value is the plain one, which an id leaves out.
FEATURES: dict[str, tuple[Any, ...]] = {
    "m": (*SIZES, 0),
    "n": (*SIZES, 0),  # columns of out: half of those of B and z where gated
    "k": (*SIZES, 0),
    "dtype": ("float32", *(name for name in DTYPES if name != "float32")),
    "out_dtype": ("", *DTYPES),
    "layout": ("NN", "NT", "TN", "TT"),  # T: the matrix axes of the operand are swapped in memory
    "a_view": INPUT_VIEWS,
    "b_view": INPUT_VIEWS,
    "out_view": ("", *OUTPUT_VIEWS),  # "": not given
    "batch": tuple(BATCHES),
    "activation": (*PLAIN_ACTIVATIONS, *GATED_ACTIVATIONS),
    "gate_layout": ("", "default", "halves", "halves_up_first", "interleaved", "pair"),
    "bias": ("", "row", "column", "full", "scalar", "number"),  # scalar: a 0-d array; number: of Python
    "bias_dtype": ("", "out", "float32"),  # "": A's
    "c": ("", "full", "row", "column", "scalar", "number", "inplace"),  # inplace: C is out
    "c_dtype": ("", "out", "float32"),
    "alpha": (1.0, 0.5, -1.25, 0.3, 0.0),  # 0: A and B are full of NaN
    "beta": (None, 1.0, -0.5, 0.7, 0.0),  # 0: C is full of NaN
    "multiply": ("", "full", "row", "column", "scalar", "number"),
    "multiply_dtype": ("", "out", "float32"),
    "epilogue_view": (*INPUT_VIEWS[:-2], "transposed", "zero_rows"),  # of bias, C and multiply
    "preactivation": ("", *DTYPES),
    "preactivation_view": OUTPUT_VIEWS,
    "prepack": (False, True),
    "values": ("normal", "positive", "mixed", "integers", "special", "large", "subnormal"),
    "allow_tf32": (False, True),
}
TOPICS = (
    "layouts", "dtypes", "activations", "bias", "alpha_beta_c", "multiply", "preactivation",
    "gated", "out_dtype", "aliasing", "prepack", "empty", "special_values", "batched",
)  # fmt: skip


def _vector(batch: str) -> bool:
    return "vector" in BATCHES[batch]


def _result_rank(batch: str) -> int:
    a, b = BATCHES[batch]
    return max([0, *(len(x) for x in (a, b) if x != "vector")]) + (a != "vector") + (b != "vector")


def _gated(activation: str) -> bool:
    return activation in GATED_ACTIVATIONS


RULES: tuple[Rule, ...] = (
    ("activation", "gate_layout", lambda act, gate: _gated(act) != bool(gate)),
    ("batch", "m", lambda batch, m: BATCHES[batch][0] == "vector" and m != 1),
    ("batch", "n", lambda batch, n: BATCHES[batch][1] == "vector" and n != 1),
    # a 1-D B is one column: no gate and up in it
    ("batch", "activation", lambda b, act: BATCHES[b][1] == "vector" and _gated(act)),
    ("batch", "gate_layout", lambda b, gate: BATCHES[b][1] == "vector" and bool(gate)),
    ("batch", "prepack", lambda b, pack: pack and BATCHES[b][1] != ()),
    ("n", "prepack", lambda n, pack: pack == PRESHUFFLE and n % 16),
    ("k", "prepack", lambda k, pack: pack == PRESHUFFLE and k % 32),
    *(("batch", kind, lambda b, how: how == "column" and _result_rank(b) < 2) for kind in ("bias", "c", "multiply")),
    ("c", "beta", lambda c, beta: not c and beta is not None),
    ("c", "activation", lambda c, act: c == "inplace" and _gated(act)),  # C is wider than out
    ("c", "gate_layout", lambda c, gate: c == "inplace" and bool(gate)),
    ("c", "out_view", lambda c, view: c == "inplace" and not view),
    ("c", "c_dtype", lambda c, dt: dt != ("out" if c == "inplace" else "") and c in ("", "number", "inplace")),
    ("bias", "bias_dtype", lambda bias, dtype: bias in ("", "number") and dtype != ""),
    ("multiply", "multiply_dtype", lambda multiply, dtype: multiply in ("", "number") and dtype != ""),
    ("preactivation", "preactivation_view", lambda p, view: not p and view != "plain"),
    ("dtype", "allow_tf32", lambda dtype, tf32: tf32 and dtype != "float32"),
    *(("activation", size, lambda act, n: act in _LATER and n not in _LATER_SIZES) for size in "mnk"),
)

MASKING = {("alpha", 0.0), ("m", 0), ("n", 0), ("k", 0), ("batch", "empty"), ("batch", "empty_b")}  # of most others


@dataclass(frozen=True)
class Case:
    """One call. Fields are FEATURES; m, n, k may have any value."""

    m: int
    n: int
    k: int
    dtype: str = "float32"
    out_dtype: str = ""
    layout: str = "NN"
    a_view: str = "plain"
    b_view: str = "plain"
    out_view: str = ""
    batch: str = ""
    activation: str = "none"
    gate_layout: str = ""
    bias: str = ""
    bias_dtype: str = ""
    c: str = ""
    c_dtype: str = ""
    alpha: float = 1.0
    beta: float | None = None
    multiply: str = ""
    multiply_dtype: str = ""
    epilogue_view: str = "plain"
    preactivation: str = ""
    preactivation_view: str = "plain"
    prepack: bool | str = False  # or the name of a layout
    values: str = "normal"
    allow_tf32: bool = False

    @cached_property
    def id(self) -> str:
        """ "17x33x65,dtype=float16,bias=row": the sizes, then every feature that is not plain."""
        parts = [f"{self.m}x{self.n}x{self.k}"]
        for field in dataclasses.fields(self)[3:]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(f"{field.name}={value}")
        return ",".join(parts)

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case with this id."""
        sizes, *rest = text.split(",")
        values: dict[str, Any] = dict(zip("mnk", map(int, sizes.split("x")), strict=True))
        for name, value in (part.split("=") for part in rest):
            if name in ("alpha", "beta"):
                values[name] = float(value)
            elif value == "True":
                values[name] = True
            else:
                values[name] = value
        return cls(**values)

    @cached_property
    def gated(self) -> bool:
        return bool(self.gate_layout)

    @property
    def activation_argument(self) -> str | tuple[Any, ...] | None:
        """What is passed as activation=: None, a name, or (name, parameter, ...)."""
        if self.activation == "none":
            return None
        name, *parameters = self.activation.rstrip(")").split("(")
        return (name, *map(float, parameters[0].split(":"))) if parameters else name

    @property
    def result_dtype(self) -> str:
        return self.out_dtype or self.dtype

    def operand_dtype(self, kind: str) -> str:
        """The dtype of bias, C or multiply, whose feature bias_dtype, ... has the value kind."""
        return {"": self.dtype, "out": self.result_dtype}.get(kind, kind)

    @property
    def flops(self) -> int:
        """Floating point operations of the products, padding and epilogue not counted."""
        a, b = (() if x == "vector" else x for x in BATCHES[self.batch])
        rank = max(len(a), len(b))
        a, b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
        batch = 1
        for x, y in zip(a, b, strict=True):
            batch *= max(x, y) if x and y else 0
        return 2 * self.m * self.n * self.k * batch * (2 if self.gated else 1)

    @cached_property
    def topics(self) -> frozenset[str]:
        """The parts of the contract that the case exercises, out of TOPICS."""
        views = {self.a_view, self.b_view, self.out_view, self.epilogue_view}
        views.add(self.preactivation_view)
        exercised = {
            "layouts": self.layout != "NN" or bool(views - {"", "plain"}),
            "dtypes": self.dtype != "float32",
            "activations": self.activation != "none",
            "bias": bool(self.bias),
            "alpha_beta_c": self.alpha != 1 or bool(self.c),
            "multiply": bool(self.multiply),
            "preactivation": bool(self.preactivation),
            "gated": self.gated,
            "out_dtype": bool(self.out_dtype),
            "aliasing": self.c == "inplace",
            "prepack": bool(self.prepack),
            "empty": 0 in (self.m, self.n, self.k) or self.batch.startswith("empty"),
            "special_values": self.values in ("special", "large", "subnormal") or 0 in (self.alpha, self.beta),
            "batched": bool(self.batch) and not _vector(self.batch),
        }
        return frozenset(topic for topic, yes in exercised.items() if yes)


# M, N, K of layers of language, speech and vision models, cut along N to what a CPU multiplies in a blink.
MODEL_SHAPES = (
    (1, 512, 4096), (1, 129, 11008), (3, 1024, 2880), (5, 384, 7168), (7, 1152, 768),
    (16, 1280, 1152), (17, 768, 3072), (32, 384, 2048), (65, 136, 2048), (128, 576, 768),
    (129, 136, 1536), (197, 768, 768), (257, 264, 512), (320, 400, 400), (727, 577, 859),
    (1000, 704, 800), (1024, 64, 4096), (2048, 96, 256), (8, 64, 16384),
)  # fmt: skip
_EPILOGUES: tuple[dict[str, Any], ...] = (
    {},
    {"bias": "row", "activation": "gelu", "layout": "NT"},
    {"bias": "row", "activation": "relu", "preactivation": "float32"},
    {"activation": "swiglu", "gate_layout": "halves", "layout": "NT"},
    {"activation": "swiglu_oai", "gate_layout": "interleaved", "bias": "row", "bias_dtype": "float32"},
    {"activation": "geglu_tanh", "gate_layout": "pair", "prepack": True, "values": "positive"},
    {"c": "inplace", "c_dtype": "out", "out_view": "plain", "beta": 1.0, "prepack": True},
    {"activation": "silu", "multiply": "full", "out_dtype": "float32", "values": "positive"},
)

# K around the ends of the pieces of 512 (double) or 1024 (float) products that the CPU kernels cut it into, of two of
# them, and of the 16 from which on they compensate the sums; 13,825 is the first too deep for few rows to go by lines.
_DEEP = (511, 512, 513, 1000, 1023, 1024, 1025, 2048, 2049, 8192, 8193, 13825, 16384, 16385, 16600)
# M and N beyond one block: B is packed once for all threads, the last of each in chunks of 6 MiB; of few rows the lines
# of a weight of 16 bits.
_WIDE = ((97, 513, 33), (100, 530, 65), (193, 769, 17), (385, 1025, 7), (98, 518, 530), (3, 4113, 37))
# Rows packed for many columns, K in one piece, in some and in many.
_STRIPS = ((13, 385, 130), (11, 390, 1027), (7, 400, 16600))
_CHUNKED = ((97, 800, 2049, ""), (97, 399, 2049, "interleaved"), (97, 401, 2049, "pair"))
_LARGE = {"m": 127, "n": 127, "k": 127}


def _restricted(features: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The features without what this machine's NumPy lacks: bfloat16 needs ml_dtypes."""
    if have_bfloat16():
        return features
    return {name: tuple(v for v in values if v != "bfloat16") for name, values in features.items()}


@lru_cache(maxsize=4)
def space(kernel: str = "") -> Space:
    """All features and values; or those that a row of the GPU kernels takes."""
    return Space(_restricted(FEATURES | TAKES.get(kernel, {})), RULES, MASKING)


def covering_sample(seed: int, strength: int = 2) -> list[Case]:
    """A sample in which every value (strength 1) or every two values (2) that may meet do meet.

    About 1000 cases at strength 2, those at the edges of the kernels' blocks among them; the same seed gives the same
    sample.
    """
    rng = random.Random(seed)
    if strength == 2:
        return [*(Case(**row) for row in space().pairs(rng)), *edge_cases(seed)]
    if strength != 1:
        raise ValueError(f"strength must be 1 or 2, not {strength}")
    left = {(name, value) for name, values in space().features.items() for value in values}
    cases = []
    while left:
        name, value = min(left, key=repr)
        case = Case(**space().random_row(rng, {name: value}, neutral=0.0))
        left -= set(dataclasses.asdict(case).items()) | {(name, value)}
        cases.append(case)
    return cases


def gpu_sample(kernel: str, seed: int) -> list[Case]:
    """As covering_sample(seed), of what a row of the GPU kernels takes, in sizes that a simulated GPU can bear.

    Besides, cases of many tiles and of many steps of k."""
    rng = random.Random(seed)
    everything = space(kernel)
    cases = [Case(**row) for row in everything.pairs(rng)]
    large = {name: everything.features[name][-1] for name in "mnk"} if kernel in IN_CHUNKS else _LARGE
    for dtype in everything.features["dtype"]:
        for m, n, k in TILED_OF.get(kernel, TILED_CHUNKS if kernel in IN_CHUNKS else TILED):
            fixed = {"dtype": dtype, "batch": "", "values": "normal", "alpha": rng.choice((1.0, 0.5, -1.25, 0.3))}
            cases.append(Case(**{**everything.random_row(rng, {**large, **fixed}), "m": m, "n": n, "k": k}))
        for m, n, k in TILED_SHUFFLED if PRESHUFFLE in everything.features["prepack"] else ():
            fixed = {"dtype": dtype, "batch": "", "values": "normal", "n": 256, "k": 256, "prepack": PRESHUFFLE}
            fixed["alpha"] = rng.choice((1.0, 0.5, -1.25, 0.3))
            cases.append(Case(**{**everything.random_row(rng, fixed), "m": m, "n": n, "k": k}))
    return cases


def edge_cases(seed: int) -> Iterator[Case]:
    """Cases of more products or columns than one block of a kernel takes; the other features are random."""
    rng = random.Random(seed)
    everything = space()
    dtypes = everything.features["dtype"]
    values = [value for value in everything.features["values"] if value != "special"]

    def case(m: int, n: int, k: int, gate: str = "", **fixed: Any) -> Case:
        fixed["alpha"] = rng.choice((1.0, 0.5, -1.25, 0.3))
        fixed.setdefault("activation", rng.choice(GATED_ACTIVATIONS if gate else PLAIN_ACTIVATIONS))
        row = everything.random_row(rng, {**_LARGE, "gate_layout": gate, **fixed})
        return Case(**{**row, "m": m, "n": n, "k": k})

    for k in _DEEP:
        for dtype in dtypes:
            for special in (False, True):
                gate = rng.choice(("", "", *everything.features["gate_layout"]))
                # without an activation what is special reaches the result
                fixed = {"activation": "none"} if special and not gate else {}
                yield case(
                    rng.choice((1, 2, 5, 13, 17)), rng.choice((1, 7, 15, 17, 33, 63)), k, gate, dtype=dtype,
                    batch=rng.choice(("", "", "2", "a", "b", "inner")),
                    values="special" if special else rng.choice(values), **fixed,
                )  # fmt: skip
    for number, (m, n, k) in enumerate(_WIDE):
        for dtype in dtypes:
            for gate in ("", ("halves", "halves_up_first", "interleaved", "pair")[number % 4]):
                batch = rng.choice(("", "2", "b", "inner"))
                yield case(m, n, k, gate, dtype=dtype, batch=batch, prepack=False)
    for m, n, k in _STRIPS:
        for dtype in dtypes:
            yield case(m, n, k, "", dtype=dtype, batch="", prepack=True)
    for dtype, (m, n, k, gate) in zip(dtypes, (*_CHUNKED, _CHUNKED[-1]), strict=False):
        yield case(m, n, k, gate, dtype=dtype, batch="", prepack=False)


def _listed() -> Iterator[Case]:
    """The full list, topic by topic; features that a topic does not set are random, from a fixed seed."""
    rng = random.Random(20240229)
    everything = space()
    dtypes = everything.features["dtype"]

    def cases(**fixed: Any) -> Case:
        return Case(**everything.random_row(rng, fixed))

    for m in SIZES:  # sizes
        for n in SIZES:
            for k in SIZES:
                batch = "" if m * n * k > 2_000_000 else rng.choice(("", "", *BATCHES))
                if not (everything.allows("batch", batch, "m", m) and everything.allows("batch", batch, "n", n)):
                    batch = ""
                for dtype in dtypes:
                    yield cases(m=m, n=n, k=k, batch=batch, dtype=dtype)
    sizes = [size for size in SIZES if 3 <= size <= 129]

    def some(**fixed: Any) -> Case:
        among = _LATER_SIZES if fixed.get("activation") in _LATER else sizes
        fixed = {"m": rng.choice(among), "n": rng.choice(among), "k": rng.choice(among), **fixed}
        return cases(**fixed)

    for activation in everything.features["activation"]:  # epilogues
        gates = everything.features["gate_layout"]
        for gate in (g for g in gates if everything.allows("activation", activation, "gate_layout", g)):
            for dtype in dtypes:
                for out_dtype in everything.features["out_dtype"]:
                    for multiply in ("", "full"):
                        for preactivation in ("", "float32"):
                            yield some(
                                activation=activation, gate_layout=gate, dtype=dtype, batch="",
                                out_dtype=out_dtype, multiply=multiply, preactivation=preactivation,
                            )  # fmt: skip
    for dtype in dtypes:  # layouts
        for layout in everything.features["layout"]:
            for a_view in INPUT_VIEWS:
                for b_view in INPUT_VIEWS:
                    yield some(dtype=dtype, layout=layout, a_view=a_view, b_view=b_view, batch="")
            for batch in BATCHES:
                for m, n, k in ((3, 5, 7), (17, 33, 16)):
                    a, b = BATCHES[batch]
                    m, n = (1 if a == "vector" else m), (1 if b == "vector" else n)
                    yield cases(dtype=dtype, layout=layout, batch=batch, m=m, n=n, k=k)
        for values in everything.features["values"]:  # values
            for out_dtype in everything.features["out_dtype"]:
                for activation in everything.features["activation"]:
                    yield some(dtype=dtype, values=values, out_dtype=out_dtype, activation=activation)
    for seed in range(4):  # edges of blocks
        yield from edge_cases(seed)
    for m, n, k in MODEL_SHAPES:
        for dtype in dtypes:
            for epilogue in _EPILOGUES:
                if dtype != "float64" or m * n * k < 60_000_000:
                    yield Case(m, n, k, dtype=dtype, **epilogue)


@lru_cache(maxsize=1)
def all_cases() -> tuple[Case, ...]:
    """The full list, the same on every machine and commit (fewer where ml_dtypes is missing)."""
    return tuple(dict.fromkeys(_listed()))
