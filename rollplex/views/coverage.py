"""Which bytes of a model trainer and engine hold as one copy, as areas by case and kind of tensor.

This file draws a sharing plan. It does not compare layouts.
"""

from __future__ import annotations

from html import escape

import plotly.graph_objects as go

from rollplex.sharing.classify import NAMES, Case
from rollplex.sharing.plan import SharingPlan, Verdict
from rollplex.views.palette import BUDGET, IDLE, series_color
from rollplex.views.timeline import base_layout
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
    ids, labels, parents, values, colors, notes = [root], [root], [""], [plan.num_parameters], [IDLE], [""]
    for case in cases:
        ids.append(f"case {case}")
        labels.append(f"{NAMES[case]} ({plan.parameters(case) / plan.num_parameters:.1%})")
        parents.append(root)
        values.append(plan.parameters(case))
        colors.append(COLORS[case])
        notes.append("")
    for (case, name), verdicts in groups.items():
        ids.append(f"case {case}/{name}")
        labels.append(escape(name))
        parents.append(f"case {case}")
        values.append(sum(v.parameters for v in verdicts))
        colors.append(COLORS[case])
        notes.append(escape(f"{len(verdicts)} tensors: {verdicts[0].why}"))
    figure = go.Figure(
        go.Treemap(
            ids=ids,
            labels=labels,
            parents=parents,
            values=values,
            branchvalues="total",
            marker={"colors": colors},
            customdata=[[size(value * plan.element_bytes), note] for value, note in zip(values, notes, strict=True)],
            hovertemplate="<b>%{label}</b> %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
        )
    )
    return figure.update_layout(**base_layout(), title=_title(plan), margin={"t": 80, "l": 8, "r": 8, "b": 8})


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
