"""The static table: the published one row by row, each assumption by itself, and peaks under the contracts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoConfig

import rollplex
from rollplex.cli import main
from rollplex.memory.contracts import CONTRACTS, STAGES, contract
from rollplex.memory.footprint import PAPER, PUBLISHED_GIB, Footprint, footprint
from rollplex.memory.managed import POLICIES, Residency, peaks
from rollplex.memory.plan import plan

TINY = Path(rollplex.__file__).parent / "assets" / "tiny-qwen2_5_vl"


@pytest.fixture(scope="module")
def paper() -> Footprint:
    return footprint("Qwen2.5-VL-32B", train_tp=8, rollout_tp=4)


def test_every_row_of_the_papers_table_is_within_one_percent(paper: Footprint) -> None:
    published = {row.item: row.paper_gib for row in paper.rows if row.paper_gib is not None}
    assert published == {item: gib for item, gib in PUBLISHED_GIB.items() if gib is not None}
    assert len(published) == 9
    for row in paper.rows:
        if row.paper_gib is not None:
            assert row.gib == pytest.approx(row.paper_gib, rel=0.01), row
    assert 2 <= paper.gib("runtime buffers") <= 4


def test_the_papers_total(paper: Footprint) -> None:
    assert 164 <= paper.total_gib <= 168
    assert paper.paper_total_gib == 165


def test_the_managed_peak_fits_and_is_derived(paper: Footprint) -> None:
    first, *rest = peaks(paper)
    assert first.gib < 80
    assert first.gib == pytest.approx(sum(size for _, size in first.objects))
    assert all(peak.gib < first.gib for peak in rest)
    assert "actor boundary KV 16.0" in first.derivation


def test_each_row_says_how_it_comes_about(paper: Footprint) -> None:
    assert all(row.derivation for row in paper.rows)
    assert "28,928 B/token/layer x 64 layers x 16,384 tokens" in paper.rows[4].derivation


@pytest.mark.parametrize(
    ("switch", "item", "gib"),
    [
        ("sharded_optimizer", "master weights", 15.13 / 4),
        ("sharded_optimizer", "Adam moments", 30.27 / 4),
        ("recompute", "activations", 1.69),
        ("deduplicated", "boundary KV", 2.0),
        ("reference_boundary", "reference boundary KV", 16.0),
        ("exact", "gradients", 15.26),
    ],
)
def test_each_assumption_switches_its_own_row(paper: Footprint, switch: str, item: str, gib: float) -> None:
    switched = footprint("Qwen2.5-VL-32B", assumptions=replace(PAPER, **{switch: True}))
    assert switched.gib(item) == pytest.approx(gib, abs=0.01)
    assert switched.gib(item) != paper.gib(item)
    assert switched.paper_total_gib is None
    assert all(row.paper_gib is None for row in switched.rows), "the paper says nothing about other assumptions"


def test_assumptions_that_others_make_leave_about_95() -> None:
    words = ("sharded_optimizer", "recompute", "deduplicated", "reference_boundary")
    others = footprint("Qwen2.5-VL-32B", assumptions=replace(PAPER, **dict.fromkeys(words, True)))
    assert others.total_gib == pytest.approx(95, abs=1)


def test_each_ablation_needs_more_than_the_whole_system(paper: Footprint) -> None:
    whole = [peak.gib for peak in peaks(paper)]
    for policy in POLICIES[1:]:
        without = [peak.gib for peak in peaks(paper, policy)]
        assert all(more >= less for more, less in zip(without, whole, strict=True)), policy
        assert max(more - less for more, less in zip(without, whole, strict=True)) > 5, policy


def test_where_the_ablations_are_too_much(paper: Footprint) -> None:
    """At once without offload and at the update without chunks, as the paper saw; without sharing, barely not."""
    over = {p.name: [peak.stage for peak in peaks(paper, p) if peak.gib > 80] for p in POLICIES}
    assert over["managed"] == []
    assert over["no state offload"][0] == "P1"
    assert over["optimizer not chunked"] == ["P3"]
    assert over["rollout KV kept"] == ["P2"]
    assert 79 < peaks(paper, Residency(share_weights=False))[0].gib < 80


def test_a_config_and_a_shape_do_as_well_as_a_name() -> None:
    table = footprint(AutoConfig.from_pretrained(TINY), train_tp=2, rollout_tp=1)
    assert table.gib("gradients") * 2**30 == 4 * table.model.num_parameters("language") / 2


def test_an_engine_without_room_for_a_cache_is_refused() -> None:
    with pytest.raises(ValueError, match=r"leave no KV cache\. Raise the rollout TP"):
        footprint("Qwen2.5-VL-72B", train_tp=2, rollout_tp=1)


def test_the_command_writes_the_agreed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan footprint --model Qwen2.5-VL-32B --train-tp 8 --rollout-tp 4 --json"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"rows", "total_gib", "paper_total_gib", "managed_peak_gib"} <= set(found)
    assert set(found["rows"][0]) == {"role", "item", "gib", "paper_gib", "derivation"}


def test_the_command_refuses_assumptions_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="choose from exact, sharded-optimizer, recompute"):
        plan(assume=("flash",))


def test_contracts_are_told_apart_by_name_and_owner() -> None:
    assert len({c.name for c in CONTRACTS}) == len({c.owner for c in CONTRACTS}) == 10
    assert contract("rollout KV") is contract("engine.kv")
    with pytest.raises(ValueError, match="no object 'weights'"):
        contract("weights")


def test_what_counts_toward_a_peak_is_on_the_device_whole_and_what_is_permanent_is_never_dropped() -> None:
    for c in CONTRACTS:
        assert all(c.device.get(stage) == "whole" for stage in c.peaks), c.name
        assert set(c.device) <= set(STAGES)
        if c.category == "permanent":
            assert c.away == ("host",), c.name
        if c.category == "boundary":
            assert set(c.device) == {"P1", "P2"}, c.name
