"""Workloads that a bench gets through in a second."""

from dataclasses import replace

from rollplex.bench.workloads import workload
from rollplex.tasks import Digits

SMALL = replace(
    workload("default"),
    name="small",
    task=Digits(digits=1, grid=(1, 1), cell=28),
    prompts=2,
    group=2,
    max_new_tokens=3,
)
WORKLOADS = {"small": SMALL}
