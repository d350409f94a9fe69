"""vLLM's own loader, watched on every rank, agrees with what `VLLM` says of its layouts. Needs vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_policy import tiny
from vllm_rollouts import NEEDS_VLLM

from rollplex.engines.vllm_process import starting
from rollplex.shapes import ModelShape
from rollplex.sharing.descriptors import VLLM, TorchTrainer
from rollplex.sharing.recorded import Recorder, blocks, joined

pytestmark = NEEDS_VLLM

Built = Callable[[int, int], torch.nn.Module]
"""(TP degree, rank) -> vLLM's model of that rank, its weights undefined."""


@pytest.fixture(scope="module")
def config() -> Any:
    """Eight query heads over two key/value heads, so that TP 4 replicates them; one layer of each kind."""
    config: Any = deepcopy(tiny(torch.float32).model.module.config)
    text, vision = config.text_config, config.vision_config
    text.hidden_size, text.num_attention_heads, text.intermediate_size = 256, 8, 320
    text.num_hidden_layers, text.layer_types = 1, text.layer_types[:1]
    vision.out_hidden_size, vision.depth, vision.fullatt_block_indexes = 256, 1, [0]
    return config


@pytest.fixture(scope="module", params=["weights", "data"])
def tower(request: pytest.FixtureRequest) -> str:
    """vLLM's names for a tower that is sharded, and one that is not."""
    mode: str = request.param
    return mode


@pytest.fixture(scope="module")
def built(config: Any, tower: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """Ranks without processes: vLLM's layers ask for their degree and rank, and nothing else, when they are made."""
    folder: Path = tmp_path_factory.mktemp("model")
    config.save_pretrained(folder)
    tiny(torch.float32).ingest.save_pretrained(folder)
    with starting(), pytest.MonkeyPatch.context() as patch:
        from vllm.config import set_current_vllm_config
        from vllm.distributed import parallel_state
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.model_loader.utils import initialize_model
        from vllm.utils.torch_utils import set_default_torch_dtype

        options: dict[str, Any] = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512}
        whole = EngineArgs(model=str(folder), mm_encoder_tp_mode=tower, **options).create_engine_config()

        def build(tp: int, rank: int) -> torch.nn.Module:
            patch.setattr(parallel_state, "_TP", SimpleNamespace(world_size=tp, rank_in_group=rank))
            only = {"is_first_rank": True, "is_last_rank": True}
            patch.setattr(parallel_state, "_PP", SimpleNamespace(world_size=1, rank_in_group=0, **only))
            whole.compilation_config.static_forward_context.clear()
            with set_current_vllm_config(whole), set_default_torch_dtype(torch.float32):
                model: torch.nn.Module = initialize_model(vllm_config=whole)
            return model

        yield build


def recorded(model: Any, shape: ModelShape) -> set[tuple[Any, ...]]:
    checkpoint = {parameter.name: torch.empty(parameter.shape) for parameter in shape.parameters()}
    with Recorder(dict(model.named_parameters()), checkpoint) as recorder:
        model.load_weights(checkpoint.items())
    return set(blocks(recorder.copies, checkpoint).values())


@pytest.mark.parametrize(("tp", "rank"), [(tp, rank) for tp in (1, 2, 4) for rank in range(tp)])
def test_the_descriptor_says_what_the_loader_does(built: Built, config: Any, tower: str, tp: int, rank: int) -> None:
    """Fused projections, divided columns, replicated heads, the padded vocabulary, the tower: every tensor."""
    shape = ModelShape.from_config(config)
    vllm = VLLM(vision="sharded" if tower == "weights" else "replicated")
    told = {joined(layout.held) for layout in vllm.layouts(shape, tp, rank)}
    assert recorded(built(tp, rank), shape) == told


def test_another_engines_layouts_are_told_apart(built: Built, config: Any) -> None:
    """The control: a trainer's tensors are not vLLM's, nor are another rank's."""
    shape = ModelShape.from_config(config)
    found = recorded(built(2, 0), shape)
    assert found != {joined(layout.held) for layout in TorchTrainer().layouts(shape, 2, 0)}
    assert found != recorded(built(2, 1), shape)
