"""Both sides' tensors are one memory, in the storage that both can use, and a parameter that leaves it is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from rollplex.sharing.bind import Binding, BindingError, bind
from rollplex.sharing.layout import Layout, Piece, replicated
from rollplex.sharing.pairing import Pairing, pair

GATE_UP = tuple(Piece(name=name, rows=8, columns=4) for name in ("gate", "up"))
DOWN = (Piece(name="down", rows=4, columns=8),)
WORDS = (Piece(name="words", rows=10, columns=4),)
BIAS = (Piece(name="bias", rows=8),)


def train_layouts(rank: int, tp: int = 2) -> tuple[Layout, ...]:
    return (
        *(Layout(tensor=p.name, pieces=(p,), axis="rows", tp=tp, rank=rank, transposable=True) for p in GATE_UP),
        Layout(tensor="down", pieces=DOWN, axis="columns", tp=tp, rank=rank, transposable=True),
        Layout(tensor="words", pieces=WORDS, axis="rows", tp=tp, rank=rank, padded_to=4),
        Layout(tensor="bias", pieces=BIAS, axis="rows", tp=tp, rank=rank),
    )


def engine_layouts() -> tuple[Layout, ...]:
    return (
        Layout(tensor="gate_up", pieces=GATE_UP, transposable=True),
        Layout(tensor="down", pieces=DOWN, transposable=True),
        Layout(tensor="words", pieces=WORDS, padded_to=4),
        Layout(tensor="bias", pieces=BIAS),
    )


def bound(rank: int = 1, dtype: torch.dtype = torch.float32) -> Binding:
    pairing = pair(train_layouts(rank), engine_layouts(), dtype=dtype)
    return bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8))


def parameters(binding: Binding) -> dict[str, nn.Parameter]:
    """A trainer's own parameters, numbers that tell places apart, in shapes of its own: vectors are vectors."""
    made = {}
    for start, (name, tensor) in enumerate(binding.trainer.items()):
        values = 100.0 * start + torch.arange(tensor.numel())
        made[name] = nn.Parameter(values.view(tensor.shape if tensor.shape[1] > 1 else (-1,)).to(tensor.dtype))
    return made


def test_what_the_trainer_writes_the_engine_reads() -> None:
    binding = bound(rank=1)
    binding.adopt("trainer", parameters(binding))
    assert torch.equal(binding.engine["gate_up"][4:8], torch.arange(16.0).view(4, 4))
    assert torch.equal(binding.engine["gate_up"][12:], 100 + torch.arange(16.0).view(4, 4))
    assert torch.equal(binding.engine["down"][:, 4:], 200 + torch.arange(16.0).view(4, 4))
    assert not binding.engine["gate_up"][:4].any(), "the other rank's part is untouched"


def test_row_parallel_weights_are_stored_transposed_and_multiply_as_they_are() -> None:
    binding = bound()
    weight = binding.trainer["down"].copy_(torch.randint(9, (4, 4)))
    assert weight.stride() == (1, 4)
    assert weight.T.is_contiguous(), "a dense slab: what kernels and collectives need"
    x = torch.randint(9, (3, 4)).float()
    assert torch.equal(nn.functional.linear(x, weight), nn.functional.linear(x, weight.contiguous()))


def test_an_optimizer_steps_on_the_shared_bytes() -> None:
    binding = bound()
    own = parameters(binding)
    binding.adopt("trainer", own)
    before = binding.engine["down"].clone()
    adam = torch.optim.AdamW(own.values(), lr=0.5)
    for parameter in own.values():
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    assert not torch.equal(binding.engine["down"][:, 4:], before[:, 4:])
    binding.check("trainer", own)


def test_the_region_is_no_larger_than_the_engines_tensors_and_their_alignment() -> None:
    pairing = bound().pairing
    assert sum(home.nbytes for home in pairing.homes) == 4 * (16 * 4 + 4 * 8 + 12 * 4 + 8)
    assert pairing.private_bytes == 0
    assert pairing.shared_bytes == sum(layout.nbytes for layout in pairing.train)


def test_adopting_without_values_takes_what_the_other_side_filled() -> None:
    binding = bound()
    binding.engine["bias"].fill_(3.0)
    own = parameters(binding)
    binding.adopt("trainer", own, keep_values=False)
    assert own["bias"].tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda p: setattr(p["down"], "data", p["down"].data.clone()), "down: replaced: its data lies elsewhere"),
        (lambda p: setattr(p["down"], "data", p["down"].data.half()), "down: cast from torch.float32 to torch.float16"),
        (lambda p: setattr(p["down"], "data", p["down"].data[:2]), r"down: resized from \(4, 4\) to \(2, 4\)"),
        (lambda p: setattr(p["down"], "data", p["down"].data.T), "down: laid out with strides"),
        (lambda p: p.update(down=nn.Parameter(p["down"].detach().clone())), "down: replaced"),
    ],
)
def test_a_parameter_that_left_the_region_is_named(spoil: object, why: str) -> None:
    binding = bound()
    own = parameters(binding)
    binding.adopt("trainer", own)
    binding.check("trainer", own)
    spoil(own)  # type: ignore[operator]
    with pytest.raises(BindingError, match=rf"1 are no longer in the shared region.*\n.*{why}"):
        binding.check("trainer", own)


def test_writing_in_place_is_no_fault() -> None:
    binding = bound()
    own = parameters(binding)
    binding.adopt("trainer", own)
    with torch.no_grad():
        own["down"].copy_(torch.zeros(4, 4)).add_(1.0)
    binding.check("trainer", own)


@pytest.mark.parametrize("names", [{}, {"down": "down"}, {"down": "w2", "bias": "bias"}])
def test_zero_and_partial_matches_are_errors_that_list_both_sides(names: dict[str, str]) -> None:
    binding = bound()
    own = parameters(binding)
    given = {new: own[old] for old, new in names.items()}
    with pytest.raises(BindingError, match=r"\d of 5 names match; only given .*, only bound \[.*'gate', 'up'") as error:
        binding.adopt("trainer", given)
    assert ("'w2'" in str(error.value)) == ("w2" in given)
    assert not binding.engine["down"].any(), "nothing was bound"


def test_layouts_that_do_not_match_are_an_error_that_lists_both_sides() -> None:
    renamed = replace(engine_layouts()[3], pieces=(replace(BIAS[0], name="b"),))
    with pytest.raises(ValueError, match=r"only the trainer has \['bias'\], only the engine has \['b'\]"):
        pair(train_layouts(0), (*engine_layouts()[:3], renamed), dtype=torch.float32)


def test_a_tied_parameter_follows_under_both_its_names() -> None:
    binding = bound()
    own = parameters(binding)
    own["lm_head"] = own["words"]
    binding.adopt("trainer", own)
    assert own["lm_head"].data_ptr() == binding.trainer["words"].data_ptr()
    binding.check("trainer", own)


def test_a_second_name_with_bytes_of_its_own_is_not_tied() -> None:
    binding = bound()
    own = parameters(binding)
    own["lm_head"] = nn.Parameter(own["words"].detach().clone())
    with pytest.raises(BindingError, match=r"only given \['lm_head'\]"):
        binding.adopt("trainer", own)


def test_buffers_are_bound_in_a_type_of_their_own() -> None:
    buffers = replicated({"inv_freq": (6,)})
    kinds = {"inv_freq": torch.float32}
    pairing = pair((*train_layouts(0), *buffers), (*engine_layouts(), *buffers), dtype=torch.bfloat16, dtypes=kinds)
    binding = bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8))
    binding.trainer["inv_freq"].fill_(0.1)
    assert binding.engine["inv_freq"].dtype == torch.float32
    assert binding.engine["inv_freq"].eq(torch.tensor(0.1)).all()
    assert binding.trainer["down"].dtype == torch.bfloat16


def test_padding_rows_stay_the_engines() -> None:
    binding = bound()
    words = torch.randn(10, 4)
    binding.engine["words"].fill_(-1.0)
    shard = {name: t if name != "words" else nn.Parameter(words[6:]) for name, t in parameters(binding).items()}
    binding.adopt("trainer", shard)
    assert torch.equal(binding.engine["words"][6:10], words[6:])
    assert binding.engine["words"][10:].eq(-1.0).all()


@pytest.mark.parametrize("shape", [(3, 4), (7, 4), (6, 2)])
def test_a_shape_that_the_layout_does_not_have_is_refused(shape: tuple[int, int]) -> None:
    binding = bound()
    own = parameters(binding)
    own["words"] = nn.Parameter(torch.zeros(shape))
    with pytest.raises(BindingError, match=r"words: it has shape .*, and its layout \(6, 4\)\. Check the parallel"):
        binding.adopt("trainer", own)


def test_a_parameter_of_another_type_is_refused() -> None:
    binding = bound()
    own = parameters(binding)
    own["bias"] = nn.Parameter(own["bias"].detach().double())
    with pytest.raises(BindingError, match=r"bias: it is torch\.float64, and the region has torch\.float32"):
        binding.adopt("trainer", own)


def test_a_region_that_is_too_small_is_refused() -> None:
    pairing = bound().pairing
    with pytest.raises(ValueError, match=r"binding a region of [\d,]+ bytes: found a tensor of shape \(16,\)"):
        bind(pairing, torch.zeros(16, dtype=torch.uint8))


def blocks(min_block_bytes: int | None) -> Pairing:
    """A merged projection, halved: two blocks of the engine's tensor, if the trainer takes blocks."""
    merged = Layout(tensor="fc1", pieces=GATE_UP, axis="rows", tp=2, rank=1, min_block_bytes=min_block_bytes)
    return pair([merged], [Layout(tensor="gate_up", pieces=GATE_UP)], dtype=torch.float32)


def test_a_merged_projection_is_bound_as_blocks() -> None:
    pairing = blocks(min_block_bytes=0)
    binding = bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8))
    binding.trainer["fc1"].copy_(torch.arange(32.0).view(2, 4, 4))
    assert torch.equal(binding.engine["gate_up"][12:], torch.arange(16.0, 32.0).view(4, 4))
    with pytest.raises(BindingError, match=r"it lies as 2 blocks, and the parameter has shape \(8, 4\)"):
        binding.adopt("trainer", {"fc1": nn.Parameter(torch.zeros(8, 4))})


def test_what_cannot_be_shared_has_memory_of_its_own() -> None:
    pairing = blocks(min_block_bytes=None)
    binding = bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8))
    binding.trainer["fc1"].fill_(1.0)
    assert not binding.engine["gate_up"].any()
    assert pairing.private_bytes == 8 * 4 * 4


def test_the_smaller_of_two_is_the_view_whoevers_it_is() -> None:
    whole = Layout(tensor="w", pieces=DOWN, transposable=True)
    shard = Layout(tensor="w", pieces=DOWN, axis="rows", tp=2, rank=1, transposable=True)
    pairing = pair([whole], [shard], dtype=torch.float32)
    binding = bind(pairing, torch.zeros(pairing.nbytes, dtype=torch.uint8))
    binding.trainer["w"].copy_(torch.arange(32.0).view(4, 8))
    assert torch.equal(binding.engine["w"], torch.arange(16.0, 32.0).view(2, 8))
    assert [home.side for home in pairing.homes] == ["trainer"]


def test_views_that_want_different_storages_of_one_tensor_do_not_both_get_it() -> None:
    """A column slice needs the transpose, a row slice must not have it: the larger one is shared, the other copied."""
    engine = Layout(tensor="both", pieces=GATE_UP, transposable=True)
    whole = Layout(tensor="gate_up", pieces=GATE_UP, axis="columns", tp=2, transposable=True)
    assert [h.storage for h in pair([whole], [engine], dtype=torch.float32).homes] == ["columns"]
    halves = [
        Layout(tensor="gate", pieces=GATE_UP[:1], transposable=True),
        Layout(tensor="up", pieces=GATE_UP[1:], axis="rows", tp=2, transposable=True),
    ]
    assert pair(halves, [engine], dtype=torch.float32).private == ()
