"""vLLM's names: how it is started in this process on a policy's weights, fed, stepped and emptied.

The only file that imports vLLM, and only inside functions: it is an extra. It knows no requests and no versions of weights.

Prompts are handed over as ingested (expanded ids, patches, grids): vLLM neither tokenises nor resizes anything.
"""

# vLLM is an extra: the file is type-checked without it too, and then `vllm` is taken for this very file.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import requires
from typing import Any

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rollplex.engines.vllm_pictures import Pictures
from rollplex.engines.vllm_process import quiet, starting
from rollplex.engines.vllm_table import Batch
from rollplex.engines.vllm_weights import SharedWeights
from rollplex.policy import Policy
from rollplex.prompts import Prompt
from rollplex.sharing.recorded import Recorder

FORMAT = "rollplex"
"""Load format under which vLLM finds our loader."""


class Vllm:
    """vLLM in this process, its parameters the policy's bytes; one at a time.

    ``batch`` draws the tokens; ``sizes`` are vLLM's own limits by its own names.
    """

    def __init__(self, policy: Policy, batch: Batch, **sizes: int) -> None:
        with starting():
            _refuse_unsupported(policy)
            llm, self.weights = _start(policy, batch, sizes)
        self._engine: Any = llm.llm_engine
        executor: Any = self._engine.engine_core.engine_core.model_executor
        self._runner: Any = executor.driver_worker.worker.model_runner
        self._positions: dict[str, tuple[torch.Tensor, int]] = {}
        # vLLM counts on after a video from its last moment, transformers from its width: the canonical record decides.
        self._runner.model.get_mrope_input_positions = self._positions_of

    @property
    def kv_caches(self) -> list[torch.Tensor]:
        """Keys and values, a tensor a layer."""
        return list(self._runner.kv_caches)

    @property
    def feature_bytes(self) -> int:
        """Bytes of the pictures' features that are kept."""
        return sum(tensor.nbytes for tensor in self._runner.encoder_cache.values())

    @property
    def busy(self) -> bool:
        """Whether a request is not complete."""
        return bool(self._engine.has_unfinished_requests())

    def prompt(self, prompt: Prompt, pictures: tuple[Pictures, ...], name: str) -> Any:
        """A canonical prompt as vLLM's own processing would leave it; what is kept of its pictures is under ``name``."""
        self._positions[name] = (prompt.positions, prompt.next_position - prompt.length)
        return _input(prompt, pictures, name)

    def submit(self, row: int, prompt: Any, *, max_tokens: int, stop: Sequence[int]) -> None:
        """Ask for a response, known by a row of the batch's table."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        # Greedy, and without log-probabilities: drawing and scoring are the table's.
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=list(stop),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={"row": row},
        )
        self._engine.add_request(str(row), prompt, params)

    def step(self) -> list[tuple[int, list[int], list[int]]]:
        """One forward pass: (row, prompt ids, response tokens) of every response that it completed."""
        outputs = self._engine.step()
        return [(int(o.request_id), list(o.prompt_token_ids), list(o.outputs[0].token_ids)) for o in outputs]

    def abort(self, rows: Sequence[int]) -> None:
        """Drop what is not complete."""
        self._engine.abort_request([str(row) for row in rows])

    def reset_caches(self) -> None:
        """Empty the caches of prefixes, of pictures' features and of processed inputs."""
        if not self._engine.reset_prefix_cache():
            raise RuntimeError(
                "emptying vLLM's prefix cache: blocks are still in use. Close the engine and make another."
            )
        self._engine.reset_encoder_cache()
        self._engine.reset_mm_cache()
        self._positions.clear()

    def close(self) -> None:
        """Free everything but the weights, which are the policy's."""
        with quiet():
            self._engine.engine_core.shutdown()
        del self._engine, self._runner, self.weights
        gc.collect()

    def _positions_of(self, input_tokens: Sequence[int], mm_features: Sequence[Any]) -> tuple[torch.Tensor, int]:
        """Positions ``[3, P]`` of a prompt that vLLM is about to read, and what to add to later ones."""
        if not mm_features:
            return torch.arange(len(input_tokens)).expand(3, -1), 0
        return self._positions[mm_features[0].identifier.partition("/")[0]]


def _input(prompt: Prompt, pictures: tuple[Pictures, ...], name: str) -> Any:
    """A canonical prompt as vLLM's own processing would leave it."""
    from vllm.inputs import mm_input, tokens_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    ids = prompt.input_ids.tolist()
    if not pictures:
        return tokens_input(ids)
    values: dict[str, torch.Tensor] = {}
    fields: dict[str, Any] = {}
    for part in pictures:
        values |= {**part.values, **part.each}
        fields |= {key: MultiModalFieldConfig.flat_from_sizes(part.modality, part.sizes) for key in part.values}
        fields |= {key: MultiModalFieldConfig.batched(part.modality, keep_on_cpu=True) for key in part.each}
    return mm_input(
        ids,
        MultiModalKwargsItems.from_hf_inputs(values, fields),
        {part.modality: [f"{name}/{part.modality}/{i}" for i in range(len(part.ranges))] for part in pictures},
        {part.modality: [PlaceholderRange(offset=at, length=num) for at, num in part.ranges] for part in pictures},
    )


def _refuse_unsupported(policy: Policy) -> None:
    """Say before anything is started why it would not work."""
    try:
        import vllm
        from vllm.distributed.parallel_state import model_parallel_is_initialized
    except ImportError as error:
        raise ImportError(
            f"starting vLLM: it cannot be imported ({error}). On a CPU `make setup-vllm` makes an environment with it; "
            "on a GPU pip install 'rollplex[vllm]'."
        ) from error
    if not (window := _window()).contains(vllm.__version__, prereleases=True):
        raise ImportError(
            f"starting vLLM: found {vllm.__version__}, and this engine reaches into the insides of versions {window}. "
            "Install one of those, or decode with policy.engine()."
        )
    if model_parallel_is_initialized() or torch.distributed.is_initialized():
        raise RuntimeError(
            "starting vLLM: this process already has a torch distributed process group, which vLLM would join and close. "
            "Close the other VllmEngine, or start this one in a process without a group."
        )
    if policy.model.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"starting vLLM: the policy is {policy.model.dtype}; vLLM has float32, bfloat16 and float16 only"
        )


def _window() -> SpecifierSet:
    """Versions whose insides are as this file expects, from this package's own metadata."""
    for line in requires("rollplex") or ():
        if (requirement := Requirement(line)).name == "vllm":
            return requirement.specifier
    return SpecifierSet()


def _start(policy: Policy, batch: Batch, sizes: dict[str, int]) -> tuple[Any, SharedWeights]:
    """Start vLLM on the policy's config, with our loader and our draws in it."""
    from vllm.model_executor.model_loader import register_model_loader

    binding = _Binding(policy)
    register_model_loader(FORMAT)(_loader(binding))
    with tempfile.TemporaryDirectory(prefix="rollplex-vllm-") as folder:
        policy.model.module.config.save_pretrained(folder)
        policy.ingest.save_pretrained(folder)
        llm = _started(
            folder,
            load_format=FORMAT,
            logits_processors=[_processor(batch)],
            dtype=str(policy.model.dtype).removeprefix("torch."),
            generation_config="vllm",
            enforce_eager=True,  # a captured graph or a compiled kernel would hold addresses and packed copies of weights
            async_scheduling=False,  # the next token is drawn with this one known
            limit_mm_per_prompt={"image": 64, "video": 64},
            mm_processor_cache_gb=0,
            mm_device_do_normalize=False,  # patches are normalised already
            skip_mm_profiling=True,
            seed=0,
            **sizes,
        )
    return llm, binding.take()


def _started(folder: str, **options: Any) -> Any:
    """vLLM, or nothing of it: what a start that failed had set up would be in the way of the next."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    try:
        return LLM(folder, **options)
    except BaseException:
        cleanup_dist_env_and_memory()
        raise


@dataclass(eq=False)
class _Binding:
    """What our loader needs and makes; emptied after the start, since vLLM keeps a loader's class for good."""

    policy: Policy | None
    weights: SharedWeights | None = None

    def watch(self, model: Any) -> None:
        """Run vLLM's own loader on the policy's tensors to learn what it would copy; copy nothing."""
        assert self.policy is not None
        checkpoint = {name: p.detach() for name, p in self.policy.model.module.named_parameters()}
        with Recorder(dict(model.named_parameters()), checkpoint) as recorder:
            model.load_weights(checkpoint.items())
        self.weights = SharedWeights(model, self.policy.model.fused, recorder.copies)
        self.weights.unload()  # on a CPU vLLM packs weights that have memory into copies of its own

    def bind(self) -> None:
        """Make the policy's bytes the model's."""
        assert self.weights is not None
        self.weights.bind()

    def take(self) -> SharedWeights:
        """The bound weights, for good."""
        weights, self.weights, self.policy = self.weights, None, None
        assert weights is not None
        return weights


def _loader(binding: _Binding) -> type:
    """A model loader that copies nothing."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class Loader(BaseModelLoader):
        def download_model(self, model_config: Any) -> None:
            """There is nothing to fetch."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            binding.watch(model)

        def load_model(self, *args: Any, **kwargs: Any) -> Any:
            model = super().load_model(*args, **kwargs)
            binding.bind()
            return model

    return Loader


def _processor(batch: Batch) -> type:
    """vLLM's extension point for logits, as which our draws are built in."""
    from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality

    class Processor(LogitsProcessor):
        def __init__(self, *_: Any) -> None:
            """Takes nothing of vLLM's configuration."""

        def is_argmax_invariant(self) -> bool:
            return False

        def update_state(self, batch_update: Any) -> None:
            if batch_update is None:
                return
            for index in batch_update.removed:
                batch.remove(index)
            for index, params, _, tokens in batch_update.added:
                batch.add(index, params.extra_args["row"], tokens)
            for source, target, direction in batch_update.moved:
                batch.move(source, target, swap=direction == MoveDirectionality.SWAP)

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            return batch.apply(logits)

    return Processor
