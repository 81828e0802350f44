"""A call that warns from C++ and then raises gives both, as plain PyTorch does."""

import warnings

import pytest
import torch
import torch_backplane


def test_both_come_out():
    def program(x, out):
        torch.add(x, 1, out=out)  # has elements, of another number: PyTorch warns
        assert x.shape == out.shape[:1], "wrong"
        assert not len(out), "right"
        return out

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    for function in (program, compiled, compiled):
        torch.set_warn_always(True)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with pytest.raises(AssertionError, match="right"):
                    function(torch.ones(3), torch.ones(2))
        finally:
            torch.set_warn_always(False)
        assert any("resized" in str(warning.message) for warning in caught)


def test_a_leaf_that_is_written_warns_of_nothing():
    def program(x):
        out = torch.zeros_like(x)
        print(end="")  # a break
        out.add_(x)
        return out

    compiled = torch_backplane.compile(program, backend="plugin:reference")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(torch.ones(2, requires_grad=True)), torch.ones(2))
