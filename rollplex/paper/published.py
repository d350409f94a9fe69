"""What the Rollplex paper (arXiv 2608.14498v1) published, as data. Nothing here is ours, and nothing is derived.

Table 2 is its only full numeric timing table; of the 32-GPU evaluation only ratios were published as numbers.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

DATASETS: Final = ("CLEVRER", "LLaVA-Video", "PerceptionTest", "STAR")
"""The four data sets, in the order of Table 2."""

SEQUENTIAL: Final = "sequential"
"""Table 2's row without overlap."""
MPS: Final = "MPS default"
"""Table 2's row that the paper recommends."""

STEP_S: Final = MappingProxyType(
    {
        SEQUENTIAL: (44.5, 216.1, 163.4, 56.2),
        MPS: (39.2, 197.8, 115.5, 41.1),
        "MPS thread cap 80/20": (40.0, 199.6, 120.8, 40.7),
        "MPS thread cap 70/30": (126.6, 259.5, 222.6, 91.6),
        "SM affinity 80/20": (38.2, 200.2, 115.4, 42.2),
        "SM affinity 70/30": (131.2, 259.5, 213.5, 93.7),
        "green contexts 62/16": (42.4, 201.0, 114.6, 43.5),
        "green contexts 54/24": (42.3, 203.0, 115.8, 45.8),
        "green contexts 38/40": (43.6, 199.0, 119.0, 45.5),
    }
)
"""Table 2: policy -> step seconds by data set. Qwen2.5-VL-7B, 8 x H20, training TP 4, two engines of TP 4."""

GENERATION_S: Final = MappingProxyType(
    {
        SEQUENTIAL: (15.0, 133.7, 79.7, 23.9),
        MPS: (16.7, 134.9, 81.4, 23.8),
        "MPS thread cap 80/20": (19.0, 135.4, 84.5, 23.6),
        "MPS thread cap 70/30": (73.8, 177.0, 150.1, 65.0),
        "SM affinity 80/20": (17.3, 137.3, 76.3, 24.3),
        "SM affinity 70/30": (75.5, 175.7, 140.4, 65.5),
        "green contexts 62/16": (24.3, 138.3, 79.7, 27.4),
        "green contexts 54/24": (22.6, 140.6, 79.9, 27.9),
        "green contexts 38/40": (23.1, 137.2, 82.0, 27.6),
    }
)
"""Table 2: policy -> generation seconds by data set."""

SPEEDUPS: Final = (1.14, 1.09, 1.41, 1.37)
"""Table 2's sequential over MPS default, as printed."""

VERSUS_COLOCATE: Final = (1.23, 1.30)
"""32 x H800, Qwen2.5-VL-32B: range of the four data sets' speedups over serial colocation."""
VERSUS_DISAGGREGATED: Final = (1.57, 2.24)
"""The same over 16 + 16 devices."""
CLEVRER_DISAGGREGATED_OVER_COLOCATE: Final = 1.80
"""Disaggregation against colocation on CLEVRER, its worst case."""
WIDER_ROLLOUT_SLOWDOWN: Final = (1.17, 1.31)
"""Rollout time at TP 8 over TP 4, on the three longer data sets."""
WIDER_STEP_SLOWDOWN: Final = (1.06, 1.17)
"""Step time at TP 8 rollout over TP 4, on the three longer data sets."""
ON_PARTIAL: Final = (1.08, 1.21)
"""Speedup of Rollplex where both sides use partial rollout."""
ON_OVERSAMPLING: Final = (1.04, 1.23)
"""Speedup of Rollplex where both sides oversample."""
