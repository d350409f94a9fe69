"""Which bytes of a model trainer and engine hold as one copy, as areas by case and kind of tensor.

This file draws a sharing plan. It does not compare layouts.
"""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from rollplex.sharing.classify import NAMES, Case
from rollplex.sharing.plan import SharingPlan, Verdict
from rollplex.views.areas import Area, treemap
from rollplex.views.palette import BUDGET, IDLE, series_color
from rollplex.views.units import size

COLORS: dict[Case, str] = {1: series_color(0), 2: series_color(3), 3: BUDGET}
"""Shared as it is, shared as its transpose, copied."""


def coverage(plan: SharingPlan) -> go.Figure:
    """A treemap of a plan: cases, and in them the kinds of tensors, layers added up.

    >>> from rollplex.published import shape
    >>> from rollplex.sharing.descriptors import TorchTrainer
    >>> from rollplex.sharing.plan import sharing_plan
    >>> plan = sharing_plan(shape("Qwen2.5-VL-3B"), train_tp=2, rollout_tp=1, trainer=TorchTrainer())
    >>> coverage(plan).data[0].labels[0]
    'Qwen2.5-VL-3B'
    """
    groups: dict[tuple[Case, str], list[Verdict]] = {}
    for verdict in plan.verdicts:
        groups.setdefault((verdict.case, kind(verdict.tensor)), []).append(verdict)
    root: str = plan.model
    cases: list[Case] = [case for case in NAMES if plan.parameters(case)]
    element = plan.element_bytes
    whole = plan.num_parameters
    areas = [Area(id=root, label=root, parent="", value=whole, nbytes=whole * element, color=IDLE)]
    for case in cases:
        num = plan.parameters(case)
        label = f"{NAMES[case]} ({num / whole:.1%})"
        areas.append(
            Area(id=f"case {case}", label=label, parent=root, value=num, nbytes=num * element, color=COLORS[case])
        )
    for (case, name), verdicts in groups.items():
        num = sum(v.parameters for v in verdicts)
        areas.append(
            Area(
                id=f"case {case}/{name}",
                label=name,
                parent=f"case {case}",
                value=num,
                nbytes=num * element,
                color=COLORS[case],
                note=f"{len(verdicts)} tensors: {verdicts[0].why}",
            )
        )
    return treemap(areas, title=_title(plan), top=80)


def kind(tensor: str) -> str:
    """A tensor's place in its layer, without the layer.

    >>> kind("model.language_model.layers.7.mlp.down_proj.weight"), kind("lm_head.weight")
    ('mlp.down_proj.weight', 'lm_head.weight')
    """
    parts = tensor.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[numbers[0] + 1 :] if numbers and numbers[0] + 1 < len(parts) - 1 else parts[-2:])


def _title(plan: SharingPlan) -> dict[str, object]:
    note = (
        f"{plan.trainer} at TP {plan.train_tp} over TP {plan.rollout_tp}: a device copies "
        f"{size(plan.buffer_bytes_per_device)} of parameters, a duplicate would be {size(plan.duplicate_bytes_per_device)}"
    )
    text = f"{plan.shared_share:.1%} of the parameters are one copy"
    return {"text": text, "subtitle": {"text": escape(note)}, "x": 0, "xref": "paper", "y": 0.97, "yanchor": "top"}
