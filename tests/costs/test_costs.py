"""Costs: sizes that are known, and directions that any roofline must have."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from costs.fakes import written
from hypothesis import given, settings
from hypothesis import strategies as st

from rollplex.costs.collectives import all_reduce_s, broadcast_s
from rollplex.costs.costs import Given, Order, Piece, Scaled, total_s
from rollplex.costs.decoding import Speed, decode_pieces
from rollplex.costs.geometry import GEOMETRIES, geometry
from rollplex.costs.measured import Measured
from rollplex.costs.placement import Placement, PlacementError
from rollplex.costs.rates import Rates
from rollplex.costs.remembered import Remembered
from rollplex.costs.residency import ABLATIONS, MANAGED, NAIVE, objects
from rollplex.costs.roofline import Efficiency, Roofline
from rollplex.costs.workload import Draw, Workload
from rollplex.hardware import DEVICES, LINKS, cluster
from rollplex.simulate.held import Occupancy

G32 = geometry("Qwen2.5-VL-32B")
COSTS = Roofline(geometry=G32, cluster=cluster("H800", num_nodes=4))
WORK = Workload(prompt_tokens=2048, response_tokens=256)


def seconds(costs: Roofline, field: str, work: Workload = WORK, devices: int = 32) -> float:
    return total_s(costs.pieces(Order(field=field, draw=work.draw(), devices=devices)))


def test_every_device_and_link_says_where_its_numbers_come_from() -> None:
    assert all(each.source for each in (*DEVICES.values(), *LINKS.values()))


@pytest.mark.parametrize(("name", "billions"), [("Qwen2.5-VL-7B", 8.29), ("Qwen2.5-VL-32B", 33.45)])
def test_weights_are_those_of_the_published_checkpoints(name: str, billions: float) -> None:
    assert GEOMETRIES[name].weights / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize("field", ["rollout", "policy_prefix", "suffix"])
def test_a_faster_device_takes_no_longer(field: str) -> None:
    fast = replace(COSTS, cluster=cluster("B200", num_nodes=4))
    assert seconds(fast, field) < seconds(COSTS, field)


@pytest.mark.parametrize("field", ["policy_prefix", "suffix"])
def test_work_that_grows_takes_longer(field: str) -> None:
    assert seconds(COSTS, field, WORK.with_(prompt_tokens=8192)) > seconds(COSTS, field)


def test_half_the_devices_take_twice_as_long_to_train_but_not_to_decode() -> None:
    assert seconds(COSTS, "suffix", devices=16) == pytest.approx(2 * seconds(COSTS, "suffix"), rel=0.01)
    assert seconds(COSTS, "rollout", devices=16) < 1.9 * seconds(COSTS, "rollout")


def test_a_handed_over_boundary_saves_the_prefill() -> None:
    order = Order(field="rollout", draw=WORK.draw(), devices=32)
    assert total_s(COSTS.pieces(replace(order, handoff=True))) < total_s(COSTS.pieces(order))


def test_devices_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        seconds(COSTS, "policy_prefix", devices=12)


@pytest.mark.parametrize("field", ["policy_prefix", "suffix"])
def test_ranks_without_a_prompt_are_idle_and_no_help(field: str) -> None:
    one = WORK.with_(prompts=1)
    assert seconds(COSTS, field, one, devices=32) == pytest.approx(seconds(COSTS, field, one, devices=8))
    order = Order(field=field, draw=one.draw(), devices=32)
    assert [piece.busy for piece in COSTS.pieces(order)] == [pytest.approx(0.25)]


def test_without_a_reference_a_suffix_is_shorter() -> None:
    assert seconds(replace(COSTS, reference=False), "suffix") < seconds(COSTS, "suffix")


@pytest.mark.parametrize("degree", [3, 16, 28])
def test_a_degree_that_heads_do_not_divide_into_is_refused_with_those_they_do(degree: int) -> None:
    with pytest.raises(PlacementError, match=r"its 40 heads, 8 of keys and values.*Choose one of 1, 2, 4, 8, 40"):
        replace(COSTS, placement=Placement(train_tp=degree))


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: Efficiency(prefix=0), "prefix"),
        (lambda: Efficiency(memory=float("nan")), "memory"),
        (lambda: Efficiency(token_s=-1), "token_s"),
        (lambda: Placement(train_tp=0), "train_tp"),
        (lambda: Placement(delta=0), "delta"),
        (lambda: Placement(accepted=0.5), "accepted"),
        (lambda: Placement(sites=2), "sites"),
        (lambda: Given({"rollout": -1.0}), "rollout"),
        (lambda: Given({"rollout": float("nan")}), "rollout"),
        (lambda: Given({"rolout": 1.0}), "rolout"),
        (lambda: Given({"rollout": 1.0}, prefill_s=2.0), "prefill_s"),
        (lambda: Given({}, num_pieces=0), "num_pieces"),
        (lambda: Scaled(Given({}), {"sufix": 2.0}), "sufix"),
        (lambda: Scaled(Given({}), {"suffix": -2.0}), "suffix"),
        (lambda: Piece("x", float("nan")), "seconds"),
        (lambda: Piece("x", -1.0), "seconds"),
        (lambda: Piece("x", 1.0, busy=2.0), "busy"),
        (lambda: Piece("x", 1.0, "gpu"), "gpu"),  # type: ignore[arg-type]
        (lambda: replace(MANAGED, kv_pool_bytes=0), "kv_pool_bytes"),
        (lambda: RATES.on(compute=0), "compute"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(made: Callable[[], object], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*; (give|and it is)"):
        made()


@pytest.mark.parametrize("model", ["nope", "", None, "rollplex", "/etc/passwd"])
def test_a_model_that_is_neither_known_nor_a_folder_is_refused(model: str) -> None:
    with pytest.raises(ValueError, match=r"no published model.*Qwen2\.5-VL-7B.*no folder with a config\.json"):
        geometry(model)


def test_a_folder_whose_config_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{nope")
    with pytest.raises(ValueError, match="reading a model's sizes from"):
        geometry(tmp_path)


def test_a_model_may_be_named_as_its_checkpoint_is() -> None:
    assert geometry("Qwen/Qwen2.5-VL-32B-Instruct") == G32


def test_a_sparse_delta_is_cheaper_to_send_and_never_dearer_than_everything() -> None:
    sparse, odd = (replace(COSTS, placement=Placement(delta=share)) for share in (0.05, 0.9))
    assert sparse.publish_s() < COSTS.publish_s()
    assert odd.publish_s() <= COSTS.publish_s()


def test_a_reduction_over_nodes_costs_more_than_inside_one() -> None:
    net = cluster("H800", num_nodes=4)
    assert all_reduce_s(1e9, 16, net) > all_reduce_s(1e9, 8, net) > 0 == all_reduce_s(1e9, 1, net)
    # Four ranks of eight devices each are on four nodes, four of two on one.
    assert all_reduce_s(1e9, 4, net, apart=8) > all_reduce_s(1e9, 4, net, apart=2) == all_reduce_s(1e9, 4, net)


def test_a_pipelined_broadcast_beats_one_after_another() -> None:
    link = LINKS["Wide area 1"]
    assert broadcast_s(1e9, 4, link) < broadcast_s(1e9, 4, link, pipelined=False)


@given(seed=st.integers(0, 1000), spread=st.floats(0, 1), replicas=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_decode_pieces_add_up_and_complete_every_prompt_once(seed: int, spread: float, replicas: int) -> None:
    draw = Workload(prompts=8, group=2, response_tokens=50, response_spread=spread).draw(seed=seed)
    speed = Speed(fixed_s=1.0, row_s=0.1, context_s=1e-4, kv_bytes=1.0)
    pieces = decode_pieces(draw, numpy.ones(8), replicas, speed)
    assert sorted(part for piece in pieces for part in piece.ready) == list(range(8))
    mine = [[p for p in range(8) if p % replicas == r] for r in range(replicas)]
    longest = max(
        len(m) + sum(_iteration(draw, m, t, speed) for t in range(int(draw.responses[m].max()))) for m in mine
    )
    assert total_s(pieces) == pytest.approx(longest, rel=1e-6)


def _iteration(draw: Draw, prompts: list[int], t: int, speed: Speed) -> float:
    rows = [(p, n) for p in prompts for n in draw.responses[p] if n > t]
    return speed.fixed_s + speed.row_s * len(rows) + speed.context_s * sum(int(draw.prompts[p]) + t for p, _ in rows)


def test_lengths_repeat_with_the_seed_and_respect_the_limit() -> None:
    work = Workload(response_tokens=200, response_spread=2.0, max_response_tokens=300)
    assert (work.draw(3, seed=1).responses == work.draw(3, seed=1).responses).all()
    assert (work.draw(3, seed=1).responses != work.draw(4, seed=1).responses).any()
    assert work.draw().responses.max() <= 300


def test_remembered_costs_are_the_same_costs() -> None:
    order = Order(field="suffix", draw=WORK.draw(), devices=32)
    remembered = Remembered(COSTS, "x")
    assert remembered.pieces(order) is remembered.pieces(order)
    assert remembered.pieces(order) == COSTS.pieces(order)


@pytest.mark.parametrize("change", [{"streamed": True}, {"handoff": True}, {"pool": "train"}, {"devices": 8}])
def test_remembered_costs_tell_orders_apart(change: dict[str, Any]) -> None:
    order = Order(field="suffix", draw=WORK.draw(), devices=32)
    remembered = Remembered(COSTS, "x")
    assert remembered.pieces(replace(order, **change)) is not remembered.pieces(order)


def test_scaled_costs_scale() -> None:
    order = Order(field="suffix", draw=WORK.draw(), devices=1)
    halved = Scaled(Given({"suffix": 4.0}), {"suffix": 0.5})
    assert total_s(halved.pieces(order)) == pytest.approx(2.0)


def test_a_collapsed_efficiency_shows() -> None:
    slow = replace(COSTS, efficiency=Efficiency(prefix=0.1))
    assert seconds(slow, "policy_prefix") > 2 * seconds(COSTS, "policy_prefix")


def test_every_mechanism_lowers_what_is_held() -> None:
    def total(residency: object) -> float:
        held = objects(residency, G32, Placement(), WORK, devices=32)  # type: ignore[arg-type]
        return sum(each.num_bytes for each in held if each.always)

    assert total(MANAGED) < min(total(policy) for policy in (*ABLATIONS[:2], ABLATIONS[3], NAIVE))


def test_keys_and_values_in_a_reserved_pool_are_counted_once() -> None:
    pool = replace(MANAGED, kv_pool_bytes=100.0)
    occupancy = Occupancy(objects(pool, G32, Placement(), WORK, devices=32))
    occupancy.started("rollout")
    before = occupancy.total("all")
    occupancy.cache("all", 60)
    assert occupancy.total("all") == before
    occupancy.cache("all", 130)  # more than the pool holds
    assert occupancy.total("all") == before + 30


def test_without_a_reference_nothing_of_it_is_held() -> None:
    held = objects(MANAGED, G32, Placement(), WORK, devices=32, reference=False)
    assert not [each.owner for each in held if "reference" in each.owner]
    assert [each.owner for each in objects(MANAGED, G32, Placement(), WORK, devices=32) if "reference" in each.owner]


DRAW = Workload(prompts=2, group=2, prompt_tokens=100, response_tokens=20, response_spread=0).draw()
RATES = Measured(
    geometry=G32,
    prefixes={
        "policy_prefix": Rates.common(1e-15),
        "reference_prefix": Rates.common(2e-15),
        "prefill": Rates.common(1.5e-15),
    },
    backward=Rates.common(3e-15),
    suffix=Rates.common(4e-15),
    speed=Speed(fixed_s=0.01, row_s=0.002, context_s=1e-5, kv_bytes=1.0, per_group=True),
    reward_s=0.5,
    update_s=0.25,
    microbatch=4,
)


def test_rates_of_a_trace_predict_that_trace() -> None:
    again = Measured.from_trace(written(RATES, DRAW), [DRAW], G32)
    for field in ("policy_prefix", "reference_prefix", "rollout", "suffix", "rewards", "update"):
        order = Order(field=field, draw=DRAW, devices=1)
        assert total_s(again.pieces(order)) == pytest.approx(total_s(RATES.pieces(order)), rel=1e-3), field


@pytest.mark.parametrize(("microbatch", "passes", "streamed"), [(4, 1, 2), (2, 2, 2), (1, 4, 4)])
def test_a_suffix_pays_for_each_microbatch_and_streamed_ones_for_each_group(
    microbatch: int, passes: int, streamed: int
) -> None:
    def seconds(pass_s: float, streams: bool) -> float:
        costs = replace(RATES, microbatch=microbatch, suffix=replace(RATES.suffix, pass_s=pass_s))
        return total_s(costs.pieces(Order(field="suffix", draw=DRAW, devices=1, streamed=streams)))

    assert seconds(0.3, False) - seconds(0.0, False) == pytest.approx(0.3 * passes)
    assert seconds(0.3, True) - seconds(0.0, True) == pytest.approx(0.3 * streamed)


def test_costs_of_no_step_are_refused() -> None:
    with pytest.raises(ValueError, match="no finished step was given"):
        Measured.from_trace(written(RATES, DRAW), [], G32)
