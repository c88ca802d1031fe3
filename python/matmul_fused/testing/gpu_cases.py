"""Sizes of the case list, and what the kernels of GPUs take of it, as far as a simulated GPU can bear it.

Read by cases.py, on the way of the sweeps on GPUs.
"""

from __future__ import annotations

from typing import Any

SIZES = (
    1, 2, 3, 5, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257,
)  # fmt: skip

_EIGHTS = (8, 16, 24, 64, 72, 128, 136, 256, 264)
_SMALL = (*(size for size in SIZES if size <= 129), 0)
_ENDS = (1, 4, 17, 63, 64, 65, 127, 129)  # of its tiles; the kernels that it is made of see all sizes elsewhere
# One to five pieces of 64 products, which split-K cuts so short a K into; without products it takes no call.
_PIECES = (1, 63, 64, 65, 127, 129, 257)
# What the rows of GPU kernels take, and how large a simulated GPU can bear it: the products of a workgroup of gemm_simt
# cost it as many instructions as 50 of gemm_mfma.
TAKES: dict[str, dict[str, tuple[Any, ...]]] = {
    "gemm_simt": {"m": _SMALL, "n": _SMALL, "k": _SMALL},
    "gemm_simt_splitk": {
        "m": _ENDS,
        "n": _ENDS,
        "k": _PIECES,
        "dtype": ("float32", "float16", "bfloat16"),
    },
    "gemm_mfma": {
        "dtype": ("float16", "bfloat16"),
        "a_view": ("plain", "offset", "padded"),
        "b_view": ("plain", "offset", "padded"),
        "allow_tf32": (False,),
    },
    "gemm_mma": {"prepack": (False,)},
    "gemm_fma": {"prepack": (False,), "dtype": ("float32",)},
    "gemm_fma_split": {"prepack": (False,), "dtype": ("float32",)},
    "gemm_mma_split": {"prepack": (False,), "dtype": ("float64",)},
}
_WIDE = {  # the loop and the epilogues of gemm_mfma and gemm_simt on other types
    "m": (*_ENDS, 257),
    "n": (*_ENDS, 257),
    "k": (*_ENDS, 257, 0),
    "a_view": ("plain", "offset", "padded"),
    "b_view": ("plain", "offset", "padded"),
    "batch": ("", "2", "a", "b", "inner"),
}
TAKES["gemm_mfma_f32"] = _WIDE | {"dtype": ("float32",)}
TAKES["gemm_mfma_xf32"] = _WIDE | {"dtype": ("float32",), "allow_tf32": (True,)}
TAKES["gemm_mfma_f64"] = _WIDE | {"dtype": ("float64",), "allow_tf32": (False,)}
_CHUNKS = {  # lines of whole runs of 16 bytes
    "m": (1, 3, 7, 17, *_EIGHTS),
    "n": _EIGHTS,
    "k": _EIGHTS,
    "dtype": ("float16", "bfloat16"),
    "a_view": ("plain",),
    "b_view": ("plain",),
    "allow_tf32": (False,),
}
PRESHUFFLE = "preshuffle_16x16"
_SHORT = ("", "float16", "bfloat16")
TAKES["gemm_wgmma"] = _CHUNKS | {"out_dtype": _SHORT, "preactivation": _SHORT, "batch": ("", "2", "a", "b")}
TAKES["gemm_wgmma_pingpong"] = TAKES["gemm_wgmma"] | {"gate_layout": ("",)}
TAKES["gemm_wgmma_pingpong_aux"] = TAKES["gemm_wgmma_pingpong"]
TAKES["gemm_gemv"] = {
    "m": (1, 2, 3, 4),
    "k": (*_EIGHTS, 1000, 1032, 2056, 4104),  # a step is 512, 1024 or 2048
    "dtype": ("float32", "float16", "bfloat16"),
    "layout": ("NT",),
    "a_view": ("plain",),
    "b_view": ("plain",),
}
TAKES["gemm_gemv_stream"] = TAKES["gemm_gemv"] | {
    "m": (1,),
    "k": (*_EIGHTS, 1000, 1032, 4104),  # a stage is 1024
    "dtype": ("float16", "bfloat16"),
    "batch": ("",),
}
TAKES["gemm_mma_thin"] = _CHUNKS | {
    "m": (1, 3, 7, 8, 9, 15, 16),  # tiles of 16 by 32, the right half of which is cut, too
    "n": (8, 16, 24, 32, 40, 48, 72),
    "k": (*_EIGHTS, 512, 520, 1032),  # a warp's step is 64, that of all warps 512
    "layout": ("NT",),
    "out_dtype": _SHORT,
    "preactivation": _SHORT,
}
_SHUFFLES = {  # n of whole blocks by 16, k of whole fragments by 32
    "n": (32, 48, 80, 144, *_EIGHTS),
    "k": (32, 96, 160, *_EIGHTS),
    "layout": ("NN", "NT"),
    "prepack": (False, True, PRESHUFFLE),
}
for _family in ("gemm_pingpong", "gemm_pingpong_staged", "gemm_thin"):
    TAKES[_family] = _CHUNKS | _SHUFFLES
TAKES["gemm_wmma"] = _CHUNKS | {
    "m": (1, 7, 17, 64, 72, 128, 136, 264),  # tiles of 64 to 256, steps of 32
    "n": (8, 24, 64, 72, 128, 136, 264),
    "k": (8, 24, 32, 40, 64, 136),
    "layout": ("NN", "NT"),
    "batch": ("", "2", "a", "b", "inner", "empty"),
    "out_dtype": _SHORT,
    "preactivation": _SHORT,
}
TAKES["gemm_thin"] |= {  # the right half of 64 is cut, too
    "n": (4, 8, 12, 16, 24, 32, 40, 48, 64, 72, 80, 128, 136, 256, 264),
    "k": (*_EIGHTS, 4, 12, 132, 260),
    "dtype": ("float16", "bfloat16", "float32", "float64"),
}
TAKES["gemm_wmma_thin"] = TAKES["gemm_wmma"] | {
    "m": (1, 3, 7, 8, 16, 17, 33),  # tiles of 16 by 32, the right half of which is cut, too
    "n": (8, 16, 24, 32, 40, 48, 72),
    "k": (8, 24, 64, 72, 136, 256, 264, 512, 520, 776),  # a wave's step is 64, that of all waves 256
    "layout": ("NT",),
}
# K of one piece to several, whole ones and cut; the loops and the epilogue see all sizes elsewhere.
_CUT = {"m": (1, 7, 17, 64, 136), "n": (8, 24, 72, 136, 264), "layout": ("NT",)}
for _family in ("gemm_pingpong_splitk", "gemm_pingpong_staged_splitk"):
    TAKES[_family] = _CHUNKS | _CUT | {"k": (8, 64, 72, 128, 136, 264)}
TAKES["gemm_thin_splitk"] = _CHUNKS | _CUT | {"n": (8, 24, 40, 72, 136), "k": (8, 136, 512, 520, 1032)}
IN_CHUNKS = (
    "gemm_wgmma", "gemm_wgmma_pingpong", "gemm_wgmma_pingpong_aux", "gemm_pingpong", "gemm_pingpong_staged",
    "gemm_thin", "gemm_wmma", "gemm_wmma_thin", "gemm_mma_thin", "gemm_gemv", "gemm_gemv_stream",
    "gemm_pingpong_splitk", "gemm_pingpong_staged_splitk", "gemm_thin_splitk",
)  # fmt: skip
# Of GPU kernels: more than 8 rows of tiles of 64 and of 128, which go in groups; three tiles; many steps of k.
TILED = ((577, 65, 5), (1153, 33, 9), (257, 255, 17), (130, 257, 33), (7, 5, 1000), (3, 70, 2049))
TILED_CHUNKS = (
    (577, 72, 8),
    (1153, 40, 16),
    (257, 256, 24),
    (130, 264, 40),
    (7, 8, 1000),
    (3, 72, 2056),
    (2100, 24, 8),
)
TILED_SHUFFLED = ((577, 80, 32), (1153, 48, 64), (257, 256, 96), (130, 272, 160), (7, 16, 1056), (3, 80, 2080))
_MANY_PIECES = ((130, 264, 72), (257, 72, 136), (7, 8, 1544), (3, 72, 4104))  # these are for few tiles
TILED_OF: dict[str, tuple[tuple[int, int, int], ...]] = {
    "gemm_gemv": ((1, 264, 2056), (2, 72, 4104), (3, 130, 1032), (4, 1000, 512), (1, 4099, 64), (4, 24, 16392)),
    "gemm_gemv_stream": ((1, 264, 2056), (1, 4099, 64), (1, 130, 1032), (1, 24, 16392), (1, 5, 8)),
    "gemm_mma_thin": ((7, 264, 2056), (2, 72, 4104), (15, 136, 1032), (16, 1000, 512), (9, 4104, 64), (16, 24, 16392)),
}
TILED_OF |= dict.fromkeys(("gemm_pingpong_splitk", "gemm_pingpong_staged_splitk", "gemm_thin_splitk"), _MANY_PIECES)
