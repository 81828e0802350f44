"""torch_backplane.compile and what goes with it at the top level."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_backplane
from torch import nn
from torch_backplane import BackplaneError, frontend

QUIET = {"report": False}


def test_compile_is_the_front_end() -> None:
    @torch_backplane.compile(backend="eager")
    def function(a):
        return a * 2

    assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
    (entry,) = torch_backplane.entries(function)
    assert entry["nodes"] == 1 and any(
        line.startswith("TENSOR_MATCH a") for line in entry["guards"]
    )


@pytest.mark.parametrize("backend", ["reference", "plugin:reference"])
def test_stats_join_both_sides(backend: str) -> None:
    torch_backplane.reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch_backplane.compile(model, backend=backend, options=QUIET)
    compiled(torch.rand(2, 4)).sum().backward()
    stats = torch_backplane.stats()
    assert stats["graphs"] == 2  # forward and backward
    assert stats["plugin_nodes"] > 0
    assert stats["captured_calls"] == 1 and stats["plain_calls"] == 0
    torch_backplane.reset()
    stats = torch_backplane.stats()
    assert stats["captured_calls"] == stats["graphs"] == 0 and stats["captured_entries"] >= 1
    compiled(torch.rand(2, 4))
    assert torch_backplane.stats()["captured_calls"] == 1


def test_weights_stay_on_the_device() -> None:
    torch_backplane.reset()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
    compiled = torch_backplane.compile(model, backend="reference", options=QUIET)
    a = torch.rand(2, 64)
    with torch.no_grad():
        compiled(a)
        before = torch_backplane.stats()
        assert torch.equal(compiled(a), compiled(a))
        after = torch_backplane.stats()
    assert after["resident_weight_bytes"] >= 4 * 64 * 64
    assert after["host_to_device_bytes"] - before["host_to_device_bytes"] == 2 * 4 * a.numel()


def test_plain_calls_have_reasons_in_stats() -> None:
    torch_backplane.reset()

    def branches_while_handling(a):
        try:
            raise ValueError
        except ValueError:
            return a if a.sum() > 0 else -a

    compiled = torch_backplane.compile(branches_while_handling)
    compiled(torch.ones(3))
    stats = torch_backplane.stats()
    assert stats["plain_calls"] == 1
    assert sum(stats["plain_reasons"].values()) == 1 and stats["breaks"] == {}
    torch_backplane.reset()
    assert torch_backplane.stats()["plain_reasons"] == {}


def test_breaks_have_reasons_in_stats() -> None:
    torch_backplane.reset()
    compiled = torch_backplane.compile(lambda a: a if a.sum() > 0 else -a)
    compiled(torch.ones(3))
    stats = torch_backplane.stats()
    assert stats["plain_calls"] == 0
    assert sum(stats["breaks"].values()) == 1
    torch_backplane.reset()
    assert torch_backplane.stats()["breaks"] == {}


def test_disable() -> None:
    @torch_backplane.disable
    def plain(a):
        return a + 1

    compiled = torch_backplane.compile(lambda a: plain(a) * 2)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 4.0))
    (reason,) = frontend.counters(compiled)["breaks"]
    assert "plain" in reason and "disabled" in reason
    assert torch.equal(plain(torch.ones(1)), torch.full((1,), 2.0))
    with pytest.raises(BackplaneError, match="BP-0102"):
        torch_backplane.disable(3)


def test_bad_options() -> None:
    with pytest.raises(BackplaneError, match="BP-0101"):
        torch_backplane.compile(abs, options={"strickt": True})
    with pytest.raises(BackplaneError, match="BP-0102"):
        torch_backplane.compile(3)
    with pytest.raises(BackplaneError, match="BP-0103"):
        torch_backplane.compile(abs, backend="plugin:none")


def test_strict_names_the_operator() -> None:
    compiled = torch_backplane.compile(
        torch.unique, backend="reference", strict=True, options=QUIET
    )
    with pytest.raises(Exception, match="unique"):
        compiled(torch.ones(3))


def test_explain_through_our_door() -> None:
    compiled = torch_backplane.compile(nn.Linear(4, 4), backend="reference", options=QUIET)
    with torch.no_grad():
        text = str(torch_backplane.explain(compiled)(torch.rand(2, 4)))
    assert "nodes on reference" in text and "copied to reference:0" in text
    compiled = torch_backplane.compile(lambda a: a if a.sum() > 0 else -a, backend="reference")
    explanation = torch_backplane.explain(compiled)(torch.ones(3)).as_dict()
    assert explanation["graph_breaks"][0]["reason"]


def test_module_keeps_what_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    compiled = torch_backplane.compile(model)
    assert isinstance(compiled, nn.Sequential) and isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    compiled.eval()
    assert not model.training and not model[1].training
    compiled.extra = 3
    assert model.extra == 3
    compiled.load_state_dict({k: v * 0 for k, v in model.state_dict().items()})
    assert torch.equal(compiled(torch.rand(2, 4)), torch.zeros(2, 4))
    model.double()
    assert compiled(torch.rand(2, 4).double()).dtype == torch.float64
    assert repr(compiled) == repr(model)
    assert frontend.counters(compiled)["plain_calls"] == 0


def test_module_keeps_its_hooks() -> None:
    model = nn.Linear(2, 2)
    compiled = torch_backplane.compile(model)
    a = torch.rand(1, 2)
    plain = model(a)
    handle = compiled.register_forward_hook(lambda module, args, out: out * 2)
    assert torch.equal(compiled(a), plain * 2)
    assert torch.equal(model(a), plain * 2)
    handle.remove()
    assert torch.equal(compiled(a), plain)
    assert frontend.counters(compiled)["plain_calls"] == 0


def test_module_is_copied_as_itself() -> None:
    model = nn.Linear(2, 2)
    compiled = torch_backplane.compile(model)
    other = copy.deepcopy(compiled)
    with torch.no_grad():
        other.weight.zero_()
        other.bias.zero_()
    assert torch.equal(other(torch.rand(1, 2)), torch.zeros(1, 2))
    assert not torch.equal(model.weight, other.weight)
