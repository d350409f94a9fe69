"""The table and the figure show the inspection's own numbers."""

import pytest
import tiny_policy

from rollplex.policy import Policy
from rollplex.sharing.descriptors import MegatronTrainer
from rollplex.sharing.devices import Devices
from rollplex.views.sharing import COLORS, SharingView, sharing


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy.tiny()


@pytest.fixture(scope="module")
def view(policy: Policy) -> SharingView:
    with Devices(policy, MegatronTrainer(), train_tp=2, rollout_tp=1) as devices:
        return sharing(devices.bindings[0])


def test_areas_add_up(view: SharingView) -> None:
    (areas,) = view.treemap().data
    of = dict(zip(areas.ids, areas.values, strict=True))
    for parent in ("model", "visual", "language_model"):
        assert sum(of[i] for i, above in zip(areas.ids, areas.parents, strict=True) if above == parent) == of[parent]
    assert of["model"] == sum(share.nbytes for share in view.inspection.shares)


def test_every_state_has_its_colour(view: SharingView) -> None:
    (areas,) = view.treemap().data
    of = dict(zip(areas.ids, areas.marker.colors, strict=True))
    assert of["language_model/self_attn.linear_qkv.weight/copied"] == COLORS["copied"]
    assert of["language_model/mlp.down_proj.weight/transposed"] == COLORS["transposed"]
    assert of["visual/attn.qkv.weight/shared"] == COLORS["shared"]


def test_the_table_by_module_has_the_same_bytes(view: SharingView) -> None:
    table = view.by_module()
    assert table["copied"].sum() == view.inspection.nbytes("copied") > 0
    assert table.loc["language_model: self_attn.linear_qkv", "copied"] > 0
    assert view.frame()["nbytes"].sum() == table.to_numpy().sum()


def test_the_cost_of_two_copies_stands_beside(policy: Policy) -> None:
    shown = sharing(policy, policy.engine())
    assert "19.2 MiB held, 38.5 MiB with a copy each" in shown._repr_html_(), "float64 here"
    assert "100.0% one copy" in repr(shown)
    assert shown.treemap().layout.title.subtitle.text in shown._repr_html_()


def test_a_policy_needs_an_engine_to_share_with(policy: Policy) -> None:
    with pytest.raises(ValueError, match=r"Call sharing\(policy, engine\)"):
        sharing(policy)
