"""AdamW whose state lives on the host and visits the device chunk by chunk.

While chunk j is stepped, j+1 is loaded and j-1 written back, so three chunks are on the device however large the whole
state is. Each chunk goes through torch's own functional AdamW, which works element by element: the numbers are those of
`rollplex.optim.AdamW`, bit for bit. The global norm is taken and every buffer is there before the first chunk moves.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch.optim.adamw import adamw

from rollplex.chunks import chunks
from rollplex.flight import Flight
from rollplex.host_state import HostState
from rollplex.interrupts import held_back
from rollplex.memory.memory import Memory
from rollplex.memory.pool import HostPool
from rollplex.optim import OWNER, Recipe, check_state, follow, gradient_norm
from rollplex.policy import Policy
from rollplex.resource import Resource

CHUNK_BYTES = 16 * 2**20
"""A good size of chunks: large against the cost of starting a copy, small against a device."""


class StreamedAdamW:
    """AdamW over a host pool; keywords besides those here are those of `Recipe`.

    Host state: two moments, and float32 masters where the weights are narrower (wide weights are their own masters).
    Without a ``pool`` it makes one of exactly its size.

    >>> optimizer = StreamedAdamW(Policy.tiny(), lr=1e-4, chunk_bytes=2**20)
    >>> optimizer.num_chunks, 3 * 2**20 >= optimizer.device_bytes > 2 * 2**20
    (20, True)
    """

    def __init__(
        self, policy: Policy, *, chunk_bytes: int = CHUNK_BYTES, pool: HostPool | None = None, **recipe: Any
    ) -> None:
        self.recipe = Recipe(**recipe)
        self._policy = policy
        self._pool = pool
        self._wide = policy.model.wide
        self._narrow = policy.model.dtype.itemsize < self._wide.itemsize
        self._num_rows = 3 if self._narrow else 2  # both moments, and the master where it is not the weight itself
        per_element = self._num_rows * self._wide.itemsize
        if chunk_bytes < 1024 * per_element:
            raise ValueError(
                f"making a streamed optimizer: chunk_bytes is {chunk_bytes:,}; use at least {1024 * per_element:,}. "
                f"{CHUNK_BYTES:,} is a good size"
            )
        self._plan = chunks([leaf.numel() for leaf in policy.weights.tensors], int(chunk_bytes // per_element))
        self._num_steps = 0
        self._host: HostState | None = None
        self._lent: HostPool | None = None
        self._gradients: HostState | None = None
        self._flight: Flight | None = None

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole state."""
        return len(self._plan)

    @property
    def device_bytes(self) -> int:
        """Bytes on the device during a step: of at most three chunks, whatever the size of the whole."""
        return self.buffer_bytes(managed=self._policy.memory is not None)

    def buffer_bytes(self, *, managed: bool) -> int:
        """The same for a policy that lives in a memory, whose gradients move with their chunks, or for one that does not."""
        gradients = self._policy.model.dtype.itemsize if managed else 0
        return Flight.nbytes(self._plan, self._num_rows * self._wide.itemsize + gradients)

    @property
    def state(self) -> Resource:
        """What is on the device: chunks in flight; on a CPU without a budget, where host is device, all of it."""
        held = [] if self._flight is None else [self._flight.staging]
        if self._policy.model.device.type == "cpu" and self._host is not None and self._pool is None:
            held.append(self._host.chunk(0))
        return Resource("optimizer.state", tuple(held))

    def move_in(self, memory: Memory | None) -> None:
        """Its state in the memory's pool, its buffers on the memory's device."""
        if memory is not self._policy.memory:
            raise ValueError("moving an optimizer into a memory: its policy lives in another. Move the policy first.")
        self._state()

    def norm(self) -> float:
        """Global 2-norm of the policy's gradients."""
        return gradient_norm(self._policy)

    def step(self, index: int, norm: float) -> None:
        """Clip to the norm limit and take one step, all in one."""
        for ticks in (self.prepare(), self.commit(index, norm)):
            for _ in ticks:
                pass

    def prepare(self) -> Generator[str, None, None]:
        """Move the gradients out, if they have a place to go to, and make the buffers."""
        self._state()
        memory = self._policy.memory
        if memory is not None:
            yield from self._move_out(memory)
            staging = memory.buffer(OWNER, self.device_bytes)
        else:
            staging = torch.empty(self.device_bytes, dtype=torch.uint8, device=self._policy.model.device)
        self._flight = Flight(staging, self._plan, self._num_rows, self._wide, self._policy.model.dtype)
        yield "buffers"

    def _move_out(self, memory: Memory) -> Generator[str, None, None]:
        """Gradients are final: to the host they go, chunk by chunk, and make room for the state."""
        if self._gradients is not None:  # of an update that was broken off
            self._gradients.free()
        self._gradients = HostState(
            self._plan, num_rows=1, dtype=self._policy.model.dtype, pool=memory.pool, owner="policy.gradients"
        )
        for place in range(self.num_chunks):
            with torch.no_grad():
                self._gradients.fill(place, 0, self._policy.gradients.tensors)
            yield f"gradients of chunk {place}"
        memory.arena.pages.settle()  # the copies must have been made before the pages go
        memory.evict("policy.gradients")

    def commit(self, index: int, norm: float) -> Generator[str, None, None]:
        """A tick a chunk. Closed early or interrupted, it runs to its end: weights are never of two versions."""
        flight = self._flight
        assert flight is not None, "prepare comes first"
        self._num_steps += 1
        num, done = self.num_chunks + 2, 0
        try:
            while done < num:
                with held_back():  # not in the middle of a chunk
                    self._turn(flight, done, index, norm)
                    done += 1
                yield f"chunk {min(done, self.num_chunks) - 1}"
        except (GeneratorExit, KeyboardInterrupt):
            with held_back():
                for turn in range(done, num):
                    self._turn(flight, turn, index, norm)
            raise
        finally:
            flight.lanes.join()
            self._flight = None
            if self._gradients is not None:
                self._gradients.free()
                self._gradients = None

    @torch.no_grad()
    def _turn(self, flight: Flight, turn: int, index: int, norm: float) -> None:
        """Load a chunk, step the one before it, write back the one before that."""
        num, state = self.num_chunks, self._state()
        if turn < num:  # its buffer was last used by the chunk three places ahead
            with flight.lanes.work("load", turn, ("store", turn - 3)):
                flight.chunk(turn).copy_(state.chunk(turn), non_blocking=True)
                if self._gradients is not None:
                    flight.gradients(turn).copy_(self._gradients.chunk(turn)[0], non_blocking=True)
        if 0 <= turn - 1 < num:
            with flight.lanes.work("step", turn - 1, ("load", turn - 1)):
                self._step(flight, turn - 1, index, norm)
        if 0 <= turn - 2 < num:
            with flight.lanes.work("store", turn - 2, ("step", turn - 2)):
                state.chunk(turn - 2).copy_(flight.chunk(turn - 2), non_blocking=True)

    def _step(self, flight: Flight, place: int, index: int, norm: float) -> None:
        leaves, rows = self._policy.weights.tensors, flight.chunk(place)
        pieces = [piece for piece in self._plan[place].pieces if leaves[piece.tensor].requires_grad]
        if not pieces:
            return  # all of it is frozen, and foreach takes no empty list
        weights = [piece.of(leaves) for piece in pieces]
        if self._gradients is None:
            gradients = [piece.of(self._policy.gradients.tensors) for piece in pieces]
        else:
            gradients = [piece.within(flight.gradients(place)) for piece in pieces]
        scale = self.recipe.clip(norm)
        if scale is not None:
            torch._foreach_mul_(gradients, scale)
        masters = [piece.within(rows[2]) for piece in pieces] if self._narrow else weights
        if self._narrow:
            follow(masters, weights)
        adamw(
            masters,
            [gradient.to(self._wide) for gradient in gradients],
            [piece.within(rows[0]) for piece in pieces],
            [piece.within(rows[1]) for piece in pieces],
            [],
            [torch.tensor(float(self._num_steps - 1)) for _ in pieces],  # which it counts up, as torch's own does
            amsgrad=False,
            beta1=self.recipe.betas[0],
            beta2=self.recipe.betas[1],
            lr=self.recipe.learning_rate(index),
            weight_decay=self.recipe.weight_decay,
            eps=self.recipe.eps,
            maximize=False,
        )
        if self._narrow:
            for weight, master in zip(weights, masters, strict=True):
                weight.copy_(master)

    @torch.no_grad()
    def _state(self) -> HostState:
        """The state in the pool that is lent to it, or in one of its own; made when it is first asked for."""
        memory, old = self._policy.memory, self._host
        pool = memory.pool if self._pool is None and memory is not None else self._pool
        if old is None or pool is not self._lent:
            pinned = self._policy.model.device.type == "cuda"
            self._host = HostState(self._plan, num_rows=self._num_rows, dtype=self._wide, pool=pool, pinned=pinned)
            self._lent = pool
            if old is not None:
                self._host.copy_(old)
                old.free()
            elif self._narrow:
                self._host.scatter(2, self._policy.weights.tensors)
            return self._host
        return old

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The state as `AdamW` gives it: chunks do not show, and either kind loads what the other saved."""
        weights = self._policy.weights.tensors
        if self._policy.model.device.type == "cuda":
            torch.cuda.synchronize(self._policy.model.device)
        saved: dict[str, Any] = self.recipe.adam([torch.empty(0) for _ in weights]).state_dict()
        if self._num_steps:
            pairs = zip(*(self._state().gathered(row, weights) for row in (0, 1)), strict=True)
            step = float(self._num_steps)
            saved["state"] = {
                i: {"step": torch.tensor(step), "exp_avg": m, "exp_avg_sq": v} for i, (m, v) in enumerate(pairs)
            }
        return {"adam": saved, "masters": self._state().gathered(2, weights) if self._narrow else []}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, of this kind or of `AdamW`; the numbers that steer stay this one's."""
        check_state(state, self._policy.weights.tensors, masters=self._narrow)
        found: Mapping[int, Mapping[str, torch.Tensor]] = state["adam"]["state"]
        weights, host = self._policy.weights.tensors, self._state()
        self._num_steps = int(found[0]["step"]) if found else 0
        rows = [[found[i][name] for i in range(len(found))] for name in ("exp_avg", "exp_avg_sq")]
        for row, whole in enumerate([*rows, state["masters"]][: self._num_rows]):
            # In the weights' own form: chunks cut what lies in storage.
            forms = [torch.zeros_like(w, dtype=self._wide, device="cpu", requires_grad=False) for w in weights]
            for form, saved in zip(forms, whole, strict=bool(whole)):
                form.copy_(saved)
            host.scatter(row, forms)

    def __repr__(self) -> str:
        rate, limit = self.recipe.learning_rate(0), self.recipe.max_grad_norm
        return f"StreamedAdamW(lr {rate:g}, {self.num_chunks} chunks, norm limit {limit:g})"
