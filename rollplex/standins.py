"""Stand-ins for phases: what a schedule needs to know of them, without a model. They can be simulated, not run.

The names, fields and resources are those of the real phases, so that the same schedules lay both out and the same
check holds for both.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, final

import torch

from rollplex.phases.phase import Phase, Tick
from rollplex.resource import Resource


@final
class StandIn(Phase):
    """A phase by name, inputs and resources alone.

    >>> StandIn("decode", "rollout", {"prompts": True}).inputs()
    {'prompts': True}
    """

    def __init__(
        self,
        name: str,
        writes: str,
        inputs: Mapping[str, bool],
        *,
        reads: tuple[Resource, ...] = (),
        mutates: tuple[Resource, ...] = (),
    ) -> None:
        self._name = name
        self._writes = writes
        self._inputs = dict(inputs)
        self._reads = reads
        self._mutates = mutates

    @property
    def name(self) -> str:
        """The real phase's name."""
        return self._name

    @property
    def writes(self) -> str:
        """The real phase's field."""
        return self._writes

    @property
    def reads(self) -> tuple[Resource, ...]:
        """Resources like the real phase's."""
        return self._reads

    @property
    def mutates(self) -> tuple[Resource, ...]:
        """Resources like the real phase's."""
        return self._mutates

    def inputs(self) -> dict[str, bool]:
        """The real phase's inputs."""
        return dict(self._inputs)

    def run(self, *args: Any, **fields: Any) -> Generator[Tick, None, Any]:
        """Refuse: there is nothing behind it."""
        raise RuntimeError(
            f"running {self.name!r}: this is a stand-in for planning, with no model behind it. Give the run real phases."
        )


def stand_ins(*, reference: bool = True, engine_copy: bool = False) -> tuple[Phase, ...]:
    """The phases of a step, as stand-ins.

    ``engine_copy``: the engine holds weights of its own, and a ``publish`` phase brings the new ones there, as where
    rollout and training have a pool each.

    >>> [phase.name for phase in stand_ins(engine_copy=True)]
    ['decode', 'reward', 'prefix(reference)', 'prefix(policy)', 'suffix', 'update', 'publish']
    """
    weights, gradients, state, frozen, engine = (
        Resource(name, (torch.zeros(1),))
        for name in ("policy.weights", "policy.gradients", "optimizer.state", "reference.weights", "engine.weights")
    )
    served = engine if engine_copy else weights
    known = {"prompts": True, "policy_prefix": True, "rollout": True, "rewards": True}
    phases = [
        StandIn("decode", "rollout", {"prompts": True, "policy_prefix": False}, reads=(served,)),
        StandIn("reward", "rewards", {"prompts": True, "rollout": True}),
        StandIn("prefix(reference)", "reference_prefix", {"prompts": True}, reads=(frozen,)),
        StandIn("prefix(policy)", "policy_prefix", {"prompts": True}, reads=(weights,)),
        StandIn("suffix", "suffix", known | {"reference_prefix": False}, reads=(weights, frozen), mutates=(gradients,)),
        StandIn("update", "update", {"suffix": True}, reads=(gradients,), mutates=(weights, gradients, state)),
    ]
    if engine_copy:
        # It sends the snapshot that the update left, and the engine swaps the finished copy in between two rollouts: so
        # neither the next update nor a rollout under way is touched.
        phases.append(StandIn("publish", "published", {"update": True}))
    return tuple(phase for phase in phases if reference or phase.writes != "reference_prefix")
