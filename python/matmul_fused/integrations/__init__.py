"""Fused calls inside the programs that serve models: vLLM, SGLang, transformers; each imported on demand.

`seam.py` holds what they share. The entry points of pyproject.toml name vllm.register and sglang.register, which those
programs call in each of their processes; without MATMUL_FUSED_VLLM=1 or MATMUL_FUSED_SGLANG=1 they do nothing.
"""

import logging
import os


def switched_on(variable: str, logger: logging.Logger) -> bool:
    """Is this switch of the environment 1? A value that means nothing is told, and is off."""
    value = os.environ.get(variable, "")
    if value not in ("", "0", "1"):
        logger.warning("%s=%s: it is 1 or 0; nothing is changed", variable, value)
    return value == "1"
