"""The rollout engine over vLLM: in the trainer's own process, on the policy's own weights.

It knows requests, versions and what must be empty between rollouts. How vLLM is called is `rollplex.engines.vllm`'s
business, which token is drawn `rollplex.engines.vllm_table`'s, whose bytes the weights are `rollplex.engines.vllm_weights`'s.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, Self

import torch

from rollplex.boundary import PrefixState
from rollplex.engines.engine import Request
from rollplex.engines.vllm import Vllm
from rollplex.engines.vllm_cache import CachePages
from rollplex.engines.vllm_pictures import Pictures
from rollplex.engines.vllm_table import Batch, Table
from rollplex.feed import Ready
from rollplex.policy import Policy
from rollplex.prompts import Prompt, PromptBatch
from rollplex.resource import Resource
from rollplex.sharing.recorded import Copied
from rollplex.step import Rollout, RolloutGroup


class VllmEngine:
    """Samples with vLLM from the policy's own storages: no byte of a weight is copied, at the start or after an update.

    It draws the tokens that the built-in engine draws (same distribution, same random numbers), to rounding. Every rollout
    begins and ends with empty prefix, encoder and multimodal caches, so that nothing made with older weights is met; on a
    CPU the cache's pages go back to the system in between, while the weights stay.

    ``max_length`` bounds prompt and response together, ``max_rows`` the responses at a time. ``kv_bytes`` are addresses,
    which on a CPU cost memory once they are used. With ``vision="policy"`` the policy's own tower runs, and vLLM is handed
    its features.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_length: int = 2048,
        max_rows: int = 256,
        microbatch_tokens: int = 8192,
        kv_bytes: int = 2**30,
        vision: Literal["engine", "policy"] = "engine",
    ) -> None:
        if vision not in ("engine", "policy"):
            raise ValueError(f"starting vLLM: vision is {vision!r}; whose tower runs is 'engine' or 'policy'")
        self._policy, self._vision = policy, vision
        self._max_length = max_length
        self._batch = Batch()
        self._num_prompts = 0
        self._vllm: Vllm | None = Vllm(
            policy,
            self._batch,
            max_model_len=max_length,
            max_num_seqs=max_rows,
            max_num_batched_tokens=max(microbatch_tokens, max_length),
            kv_cache_memory_bytes=kv_bytes,
        )
        self._cache = CachePages(self._vllm.kv_caches)

    @property
    def weights(self) -> Resource:
        """vLLM's own parameters, which lie in the policy's storages."""
        return Resource("engine.weights", tuple(self.parameters().values()))

    def parameters(self) -> dict[str, torch.Tensor]:
        """vLLM's parameters by its own names; none once closed."""
        return {} if self._vllm is None else self._vllm.weights.tensors

    @property
    def share(self) -> float:
        """Part of vLLM's parameters that lie in the policy's storages, told by address."""
        return self._opened().weights.share

    @property
    def copies(self) -> tuple[Copied, ...]:
        """What vLLM's own loader would have copied from the checkpoint, as it was seen to try."""
        return self._opened().weights.copies

    @property
    def version(self) -> int:
        """Version of the policy's weights: there are no others."""
        return self._policy.version

    @property
    def banned(self) -> tuple[int, ...]:
        """The visual placeholders."""
        return self._policy.model.placeholder_ids

    def held(self) -> dict[str, int]:
        """Keys and values, and features of pictures: nothing between rollouts on a CPU."""
        if self._vllm is None:
            return {}
        parts = {"rollout.kv": self._cache.nbytes, "rollout.features": self._vllm.feature_bytes}
        return {name: num for name, num in parts.items() if num}

    def rollout(
        self, request: Request, handoff: PrefixState | None = None
    ) -> Generator[str | Ready[RolloutGroup], None, Rollout]:
        """Serve a request; a tick is one step of vLLM: a piece of prefill, or one token of every living response."""
        if handoff is not None:
            raise ValueError(
                "decoding with vLLM from the actor's prefix: vLLM has no way in for keys and values made outside of it. Use "
                "a schedule in which decode runs its own prefill (Serial, Rollplex, Streamed), or policy.engine()."
            )
        batch, version = request.prompts, self.version
        table = Table.of(request, self._policy.model.eos_ids)
        groups: dict[int, RolloutGroup] = {}
        for event in self._serve(batch, table):
            if isinstance(event, str):
                yield event
            else:
                groups[event] = table.group(event, self._policy.ingest, version)
                yield Ready(groups[event], f"group {event} complete")
        self._policy.expect(version, "rollout")
        return Rollout(
            groups=tuple(groups[i] for i in range(len(batch))),
            version=version,
            step=batch.step,
            seed=batch.seed,
            sampling=request.sampling,
        )

    def logprobs(self, prompts: PromptBatch, rollout: Rollout) -> tuple[torch.Tensor, ...]:
        """vLLM's log-probabilities of a rollout's tokens, decoded one by one: ``[G, T]`` a prompt, 0 past the lengths."""
        table = Table.given(rollout)
        for _ in self._serve(prompts, table):
            pass
        return table.logprobs.split(table.size)

    def close(self) -> None:
        """Free everything that vLLM holds; the policy's weights stay, and a new engine can be made."""
        if self._vllm is None:
            return
        vllm, self._vllm = self._vllm, None
        vllm.close()
        self._cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._vllm is None else f"version {self.version}"
        return f"VllmEngine({state}, {sum(self.held().values()):,} bytes besides the weights)"

    def _opened(self) -> Vllm:
        if self._vllm is None:
            raise RuntimeError("using a VllmEngine: it was closed. Make another one.")
        return self._vllm

    def _serve(self, batch: PromptBatch, table: Table) -> Generator[str | int, None, None]:
        """Fill a table, one step of vLLM a tick; the prompts whose responses are complete are told by number."""
        vllm = self._opened()
        vllm.weights.check()
        if self._batch.table is not None:
            raise RuntimeError("decoding with vLLM: this engine is serving another rollout. Finish or close that one.")
        table.refuse_longer(batch, self._max_length)
        self._forget(vllm)
        self._batch.table = table
        try:
            for index, prompt in enumerate(batch):
                self._submit(vllm, prompt, table, index)
                yield f"submit {index}"
            num = 0
            while vllm.busy:
                for row, ids, tokens in vllm.step():
                    prompt = row // table.size
                    _expect_ids(ids, batch[prompt], row)
                    if table.end(row, tokens):
                        yield prompt
                yield f"token {num}"
                num += 1
        finally:
            self._batch.table = None
            if self._vllm is not None:
                vllm.abort(table.open_rows())
                self._forget(vllm)

    def _submit(self, vllm: Vllm, prompt: Prompt, table: Table, index: int) -> None:
        """Ask for the responses to one prompt."""
        self._num_prompts += 1  # pictures are named for it: no two prompts ever share one by accident
        pictures = tuple(Pictures.of(prompt, self._policy.model, features=self._vision == "policy"))
        given = vllm.prompt(prompt, pictures, str(self._num_prompts))
        for row in table.rows(index):
            vllm.submit(row, given, max_tokens=int(table.limits[row]), stop=table.eos)

    def _forget(self, vllm: Vllm) -> None:
        """Empty every cache that holds what some weights computed, and return its memory."""
        vllm.reset_caches()
        self._cache.release()


def _expect_ids(read: list[int], prompt: Prompt, row: int) -> None:
    if read != prompt.input_ids.tolist():
        raise RuntimeError(
            f"decoding response {row} with vLLM: it read {len(read)} prompt ids, which are not the {prompt.length} that were "
            "handed over. This version processes prompts by itself: see docs/vllm.md."
        )
