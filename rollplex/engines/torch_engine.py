"""The built-in rollout engine: plain torch over the policy's own storages.

It knows how to serve a `Request` tick by tick. It keeps no weights; its only memory is the response cache.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy
import torch

from rollplex.boundary import Boundary, PrefixState
from rollplex.engines.decoding import Batch, Block, ResponseCache
from rollplex.engines.engine import Request
from rollplex.feed import Ready
from rollplex.model.prefix import boundaries
from rollplex.policy import Policy
from rollplex.resource import Resource
from rollplex.sampling import uniforms
from rollplex.step import Rollout, RolloutGroup

COMPACT_AT = 0.875
"""Rows are moved together once fewer than this share of them is alive: moving costs about one token's time."""


class TorchEngine:
    """Samples with the policy's weights, in place.

    ``generator`` replaces each sample's own randomness by one shared stream: schedules then no longer agree, which is
    what it is for. ``check_every`` is the number of tokens between looks at which responses have ended.

    >>> from rollplex.policy import Policy
    >>> policy = Policy.tiny()
    >>> policy.engine().weights.overlaps(policy.weights)
    True
    """

    def __init__(
        self,
        policy: Policy,
        *,
        microbatch_tokens: int = 8192,
        check_every: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._policy = policy
        self._generator = generator
        self._microbatch_tokens = microbatch_tokens
        self._check_every = check_every or (1 if policy.model.device.type == "cpu" else 8)
        self.cache = ResponseCache()

    @property
    def weights(self) -> Resource:
        """The policy's own storages."""
        return Resource("engine.weights", self._policy.weights.tensors)

    @property
    def version(self) -> int:
        """Version of the policy's weights: there are no others."""
        return self._policy.version

    @property
    def banned(self) -> tuple[int, ...]:
        """The visual placeholders."""
        return self._policy.model.placeholder_ids

    def held(self) -> dict[str, int]:
        """The response cache."""
        return {"rollout.kv": self.cache.nbytes} if self.cache.nbytes else {}

    def rollout(
        self, request: Request, handoff: PrefixState | None = None
    ) -> Generator[str | Ready[RolloutGroup], None, Rollout]:
        """Serve a request; each tick is one token of every living response."""
        version = self.version
        if handoff is None:
            memory = self._policy.memory
            kept = yield from boundaries(
                self._policy.model,
                request.prompts,
                attached=False,
                microbatch_tokens=self._microbatch_tokens,
                arena=None if memory is None else memory.arena,
                owner="engine.kv",
            )
        else:
            self._policy.expect(handoff.version, "prefix")
            handoff.expect(request.prompts)
            kept = handoff.boundaries
        state = self._begin(request, kept)
        while state.batch.ids.numel():
            label = self._advance(request, state)
            if state.num_drawn % self._check_every == 0 or state.num_drawn == request.max_new_tokens:
                for prompt in state.retire():
                    yield Ready(self._group(request, state, prompt), f"group {prompt} complete")
            yield label
        self._policy.expect(version, "rollout")
        return Rollout(
            groups=tuple(self._group(request, state, i) for i in range(len(request.prompts))),
            version=version,
            step=request.prompts.step,
            seed=request.prompts.seed,
            sampling=request.sampling,
        )

    @torch.no_grad()
    def _begin(self, request: Request, kept: tuple[Boundary, ...]) -> _State:
        model, group = self._policy.model, request.group
        blocks: list[Block] = []
        for boundary in kept:
            start = blocks[-1].rows.stop if blocks else 0
            blocks.append(Block.of(boundary, [group] * len(boundary.prompts), start))
        order = [prompt for boundary in kept for prompt in boundary.prompts]
        ids = torch.tensor([prompt * group + j for prompt in order for j in range(group)], device=model.device)
        num = len(request.prompts) * group
        batch = Batch(
            model=model,
            blocks=tuple(blocks),
            cache=self.cache.lines(model, num, request.max_new_tokens, self._policy.memory),
            positions=torch.cat([b.next_positions for b in kept]).repeat_interleave(group),
            ids=ids,
        )
        limits = torch.full((num,), request.max_new_tokens) if request.lengths is None else request.lengths.flatten()
        return _State(
            batch=batch,
            hidden=torch.cat([b.output.last_hidden.detach() for b in kept]).repeat_interleave(group, dim=0),
            uniforms=torch.from_numpy(_table(request)).to(model.device),
            tokens=torch.full((num, request.max_new_tokens), model.pad_id, device=model.device),
            logprobs=torch.zeros(num, request.max_new_tokens, dtype=model.wide, device=model.device),
            lengths=torch.zeros(num, dtype=torch.int64, device=model.device),
            finished=torch.zeros(num, dtype=torch.bool, device=model.device),
            alive=torch.ones(num, dtype=torch.bool, device=model.device),
            limits=limits.to(model.device),
            eos_ids=torch.tensor(model.eos_ids, device=model.device),
            group=group,
        )

    @torch.no_grad()
    def _advance(self, request: Request, state: _State) -> str:
        """Draw one token for every row, and feed it unless it was the last."""
        model, t, ids = self._policy.model, state.num_drawn, state.batch.ids
        if t:
            state.hidden = state.batch.forward(state.tokens[ids, t - 1])
        distribution = request.sampling.logprobs(model.text.head(state.hidden).to(model.wide))
        draws = state.uniforms[ids, t] if self._generator is None else self._shared_draws(len(ids))
        drawn = request.sampling.draw(distribution, draws)
        state.tokens[ids, t] = drawn
        state.logprobs[ids, t] = distribution.gather(-1, drawn[:, None])[:, 0]
        # Where lengths are given, nothing else ends a response.
        state.record(ids, torch.isin(drawn, state.eos_ids) if request.lengths is None else None)
        return f"token {t}"

    def _shared_draws(self, num: int) -> torch.Tensor:
        """Numbers that depend on who drew before: what per-sample generators avoid (see `rollplex.verify`)."""
        return torch.rand(num, generator=self._generator, dtype=torch.float64).to(self._policy.model.device)

    def _group(self, request: Request, state: _State, prompt: int) -> RolloutGroup:
        rows = slice(prompt * request.group, (prompt + 1) * request.group)
        lengths = state.lengths[rows].cpu()
        longest = int(lengths.max())
        tokens = state.tokens[rows, :longest].cpu()
        texts = [self._policy.ingest.decode(line[:length]) for line, length in zip(tokens, lengths, strict=True)]
        return RolloutGroup(
            prompt=prompt,
            tokens=tokens,
            lengths=lengths,
            logprobs=state.logprobs[rows, :longest].cpu(),
            finished=state.finished[rows].cpu(),
            texts=tuple(texts),
            version=self.version,
            sampling=request.sampling,
        )

    def __repr__(self) -> str:
        return f"TorchEngine(version {self.version}, response cache {self.cache.nbytes:,} bytes)"


def _table(request: Request) -> numpy.ndarray:
    """``[N G, max_new_tokens]`` uniforms: row (prompt, sample), column position."""
    batch = request.prompts
    return numpy.stack(
        [
            uniforms(seed=batch.seed, step=batch.step, prompt=prompt, sample=j, num=request.max_new_tokens)
            for prompt in range(len(batch))
            for j in range(request.group)
        ]
    )


@dataclass(eq=False)
class _State:
    """A rollout in the middle. Rows of the tables are responses, in (prompt, sample) order."""

    batch: Batch
    hidden: torch.Tensor
    uniforms: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor
    lengths: torch.Tensor
    finished: torch.Tensor
    alive: torch.Tensor
    limits: torch.Tensor
    eos_ids: torch.Tensor
    group: int
    num_drawn: int = 0

    def record(self, ids: torch.Tensor, ends: torch.Tensor | None) -> None:
        """Note one more token for the rows that were alive, and which of them ``ends``; device work only."""
        living = self.alive[ids]
        self.num_drawn += 1
        self.lengths[ids] += living
        going = living & (self.limits[ids] > self.num_drawn)
        if ends is not None:
            self.finished[ids] |= ends & living
            going &= ~ends
        self.alive[ids] = going

    def retire(self) -> list[int]:
        """Prompts that completed since the last call; dead rows leave the batch once they are many."""
        rows = self.alive[self.batch.ids]
        num = int(rows.sum())
        if num == self._living:
            return []
        before, self._living = self._open, num
        self._open = set(torch.div(self.alive.nonzero()[:, 0], self.group, rounding_mode="floor").tolist())
        if num < COMPACT_AT * len(rows):
            self.batch.keep(rows)
        return sorted(before - self._open)

    def __post_init__(self) -> None:
        self._open = set(range(len(self.tokens) // self.group))
        self._living = len(self.tokens)
