"""Rollplex: phases of a reinforcement-learning step, schedules of phases, and traces of what happened.

This file knows where each public name lives and nothing else: importing it imports neither torch nor any other
library, and a name's module is imported when the name is first asked for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollplex import memory as memory
    from rollplex import tasks as tasks
    from rollplex.candidate import Budget as Budget
    from rollplex.compare import compare as compare
    from rollplex.costs.costs import Given as Given
    from rollplex.costs.measured import Measured as Measured
    from rollplex.costs.placement import Placement as Placement
    from rollplex.costs.roofline import Efficiency as Efficiency
    from rollplex.costs.workload import Workload as Workload
    from rollplex.diagnosis import diagnose as diagnose
    from rollplex.doctor import doctor as doctor
    from rollplex.engines.vllm_engine import VllmEngine as VllmEngine
    from rollplex.evaluate import evaluate as evaluate
    from rollplex.hardware import Device as Device
    from rollplex.hardware import Link as Link
    from rollplex.hardware import cluster as cluster
    from rollplex.ingest import Ingest as Ingest
    from rollplex.interference import Interference as Interference
    from rollplex.log import JsonLines as JsonLines
    from rollplex.log import log as log
    from rollplex.losses import DAPO as DAPO
    from rollplex.losses import GRPO as GRPO
    from rollplex.losses import DrGRPO as DrGRPO
    from rollplex.memory.footprint import footprint as footprint
    from rollplex.memory.ledger import ledger as ledger
    from rollplex.memory.memory import Memory as Memory
    from rollplex.memory.pool import HostPool as HostPool
    from rollplex.phases.decode import Decode as Decode
    from rollplex.phases.prefix import Prefix as Prefix
    from rollplex.phases.reward import Reward as Reward
    from rollplex.phases.suffix import Suffix as Suffix
    from rollplex.phases.update import Update as Update
    from rollplex.planner import plan as plan
    from rollplex.policy import Policy as Policy
    from rollplex.policy import Reference as Reference
    from rollplex.policy import StaleError as StaleError
    from rollplex.prompts import Prompt as Prompt
    from rollplex.prompts import PromptBatch as PromptBatch
    from rollplex.run import Run as Run
    from rollplex.scenario import Scenario as Scenario
    from rollplex.schedule import ScheduleError as ScheduleError
    from rollplex.schedule import Timetable as Timetable
    from rollplex.schedules import OnePrefill as OnePrefill
    from rollplex.schedules import Rollplex as Rollplex
    from rollplex.schedules import Serial as Serial
    from rollplex.schedules import Streamed as Streamed
    from rollplex.schedules_pools import Disaggregated as Disaggregated
    from rollplex.schedules_pools import Multiplexed as Multiplexed
    from rollplex.schedules_pools import OneStepOff as OneStepOff
    from rollplex.simulate import Job as Job
    from rollplex.simulate import simulate as simulate
    from rollplex.step import Step as Step
    from rollplex.steps import Steps as Steps
    from rollplex.trace import Tick as Tick
    from rollplex.trace import Trace as Trace
    from rollplex.verify import verify as verify
    from rollplex.views.report import report as report
    from rollplex.views.sharing import sharing as sharing
    from rollplex.views.watch import watch as watch
    from rollplex.wandb_log import WandB as WandB

    __version__: str

_HOME = {
    "Budget": "candidate",
    "DAPO": "losses",
    "Decode": "phases.decode",
    "Device": "hardware",
    "Disaggregated": "schedules_pools",
    "DrGRPO": "losses",
    "Efficiency": "costs.roofline",
    "GRPO": "losses",
    "Given": "costs.costs",
    "HostPool": "memory.pool",
    "Ingest": "ingest",
    "Interference": "interference",
    "Job": "simulate",
    "JsonLines": "log",
    "Link": "hardware",
    "Measured": "costs.measured",
    "Memory": "memory.memory",
    "Multiplexed": "schedules_pools",
    "OnePrefill": "schedules",
    "OneStepOff": "schedules_pools",
    "Placement": "costs.placement",
    "Policy": "policy",
    "Prefix": "phases.prefix",
    "Prompt": "prompts",
    "PromptBatch": "prompts",
    "Reference": "policy",
    "Reward": "phases.reward",
    "Rollplex": "schedules",
    "Run": "run",
    "Scenario": "scenario",
    "ScheduleError": "schedule",
    "Serial": "schedules",
    "StaleError": "policy",
    "Step": "step",
    "Steps": "steps",
    "Streamed": "schedules",
    "Suffix": "phases.suffix",
    "Tick": "trace",
    "Timetable": "schedule",
    "Trace": "trace",
    "Update": "phases.update",
    "VllmEngine": "engines.vllm_engine",
    "WandB": "wandb_log",
    "Workload": "costs.workload",
    "cluster": "hardware",
    "compare": "compare",
    "diagnose": "diagnosis",
    "doctor": "doctor",
    "evaluate": "evaluate",
    "footprint": "memory.footprint",
    "ledger": "memory.ledger",
    "log": "log",
    "plan": "planner",
    "report": "views.report",
    "sharing": "views.sharing",
    "simulate": "simulate",
    "verify": "verify",
    "watch": "views.watch",
}
"""Public name -> the module under ``rollplex`` that defines it."""

__all__ = [  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll] - the table above is the one list
    "__version__",
    "memory",
    "tasks",
    *_HOME,
]


class _Package(ModuleType):
    """The package, in which ``rollplex.compare`` is the function even after the module of that name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds every imported submodule on its package, which would hide the function.
        if name in _HOME and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"rollplex.{_HOME[name]}"), name)
    if name in ("memory", "tasks"):
        return import_module(f"rollplex.{name}")
    if name == "__version__":
        return _version()
    raise AttributeError(_unknown(name))


def __dir__() -> list[str]:
    return sorted(__all__)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rollplex")
    except PackageNotFoundError:
        return "0+source"  # run from a source tree that was never installed


def _unknown(name: str) -> str:
    """The message for a name that is not public, with the names it may have been meant for."""
    from difflib import get_close_matches

    by_folded = {public.casefold(): public for public in __all__}
    near = [by_folded[match] for match in get_close_matches(name.casefold(), by_folded, n=3)]
    hint = f"Did you mean {', '.join(near)}?" if near else "`dir(rollplex)` lists the public names."
    return f"module 'rollplex' has no attribute {name!r}. {hint}"
