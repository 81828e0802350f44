"""Tensors on the device: made, moved, viewed, written, read, printed."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_backplane
from device.agreement import alias_of
from device.helpers import PLUGINS, close, counting
from threads import run_in_threads


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def npu(plugin: str) -> torch.device:
    return torch_backplane.device(plugin, 0)


def test_an_index_per_plugin_and_device() -> None:
    devices = [torch_backplane.device(name) for name in PLUGINS]
    assert len(set(devices)) == len(PLUGINS)
    assert devices == [torch_backplane.device(name) for name in PLUGINS]
    assert all(d.type == "backplane" for d in devices)


def test_a_round_trip_keeps_every_element(npu: torch.device) -> None:
    for dtype in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.bool,
        torch.uint8,
    ):
        host = torch.randint(0, 2, (3, 5)).to(dtype)
        there = host.to(npu)
        assert there.device == npu and there.dtype == dtype
        assert torch.equal(there.cpu(), host)
    assert torch.equal(torch.empty(0, 3).to(npu).cpu(), torch.empty(0, 3))


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda t: t.t(),
    "odd_start": lambda t: t[1:, 3:],
    "step": lambda t: t[::2, 1::3],
    "expanded": lambda t: t[:, :1].expand(-1, 7),
    "reshaped": lambda t: t.reshape(-1)[5:17].view(3, 4),
    "unfolded": lambda t: t.unfold(1, 3, 2),
    "other_type": lambda t: t.view(torch.int32),
    "scalar": lambda t: t[2, 3],
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_show_the_same_memory(npu: torch.device, view: str) -> None:
    host = torch.randn(6, 8)
    there = host.to(npu)
    shown = VIEWS[view](there)
    assert shown.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
    assert torch.equal(shown.cpu(), VIEWS[view](host))
    assert torch.equal(shown.contiguous().cpu(), VIEWS[view](host).contiguous())
    close((shown * 2).float(), (VIEWS[view](host) * 2).float())


@pytest.mark.parametrize("view", [v for v in VIEWS if v not in ("expanded", "unfolded")])
def test_writing_through_views(npu: torch.device, view: str) -> None:
    host, there = torch.randn(6, 8), None
    there = host.to(npu)
    other = there.t()  # made before: sees it too
    for tensor in (host, there):
        VIEWS[view](tensor).mul_(3)
        VIEWS[view](tensor).copy_(VIEWS[view](tensor) + 1)
    close(
        there.view(torch.int32) if view == "other_type" else there,
        host.view(torch.int32) if view == "other_type" else host,
    )
    assert torch.equal(other.cpu(), there.cpu().t())


def test_copies_between_types_and_strides(npu: torch.device) -> None:
    host = torch.randn(4, 6)
    for source in (host.to(npu), host):
        target = torch.zeros(6, 4, dtype=torch.float64, device=npu)
        target.t().copy_(source)
        assert torch.equal(target.cpu(), host.t().double())
        target[1:3, ::2].copy_(source[:2, 3:5].t().t())
        expected = host.t().double()
        expected[1:3, ::2] = host[:2, 3:5]
        assert torch.equal(target.cpu(), expected)
    back = torch.zeros(6, 4, dtype=torch.float16)
    back.t().copy_(host.to(npu))
    assert torch.equal(back, host.t().half())
    shifted = host.to(npu)
    shifted[1:] = shifted[:-1].clone()
    assert torch.equal(shifted.cpu(), torch.cat([host[:1], host[:-1]]))


def test_conjugates_and_negatives(npu: torch.device) -> None:
    host = torch.randn(3, 4, dtype=torch.complex64)
    there = host.to(npu)
    assert torch.equal(there.conj().cpu(), host.conj())
    assert torch.equal(there.conj().resolve_conj().cpu(), host.conj().resolve_conj())
    assert torch.equal(there.conj().imag.cpu(), host.conj().imag)
    target = torch.zeros_like(there)
    target.conj().copy_(there)
    assert torch.equal(target.cpu(), host.conj().resolve_conj())


def test_one_element_is_one_small_read(plugin: str, npu: torch.device) -> None:
    there = torch.tensor([1.5, 2.5]).to(npu)
    with counting() as found:
        assert there[1].item() == 2.5
        assert bool(there[0] > 1)
        assert there.tolist() == [1.5, 2.5]
    assert found["host_to_device_bytes"] == 0
    # Where the host's memory is the device's, nothing moves; an OpenCL device may be either.
    allowed = {
        "cpu_onednn": (0,),
        "reference": (4 + 1 + 8,),
        "opencl": (0, 4 + 1 + 8),
        "cuda": (4 + 1 + 8,),
    }
    assert found["device_to_host_bytes"] in allowed[plugin]


def test_printing_reads_once() -> None:
    npu = torch_backplane.device("reference")
    host = torch.randn(40, 5)
    there = host.to(npu)
    with counting() as found:
        text = repr(there)
    assert text.split() == f"{repr(host)[:-1]}, device='{npu}')".split()
    assert found["transfers"]["reference:0"]["device_to_host"]["output"] == (800, 1)
    assert "requires_grad=True" in repr(torch.ones(2, device=npu, requires_grad=True))


def test_storage_is_resized_with_its_content(npu: torch.device) -> None:
    there = torch.arange(4.0, device=npu)
    there.resize_(6)
    assert torch.equal(there[:4].cpu(), torch.arange(4.0))
    there.set_(torch.ones(3, device=npu).untyped_storage())
    assert there.cpu().tolist() == [1, 1, 1]
    there.set_()
    assert there.numel() == 0 and there.device == npu


def test_memory_is_used_again_and_given_back(plugin: str, npu: torch.device) -> None:
    memory = torch.accelerator.memory
    gc.collect()
    memory.empty_cache()
    before = memory.memory_allocated(npu), memory.memory_reserved(npu)
    there = torch.empty(1 << 20, device=npu)
    assert memory.memory_allocated(npu) == before[0] + there.nbytes
    address = there.data_ptr()
    del there
    assert memory.memory_allocated(npu) == before[0]
    assert memory.memory_reserved(npu) >= before[1] + (4 << 20)
    assert torch.empty(1 << 20, device=npu).data_ptr() == address
    memory.empty_cache()
    assert memory.memory_reserved(npu) == before[1]


def test_more_than_the_device_has_is_an_error_and_tensors_stay_intact() -> None:
    npu = torch_backplane.device("cpu_onednn")
    kept = torch.arange(5.0, device=npu)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 60, dtype=torch.uint8, device=npu)
    assert kept.cpu().tolist() == [0, 1, 2, 3, 4]


def test_tensors_of_two_devices_do_not_meet() -> None:
    first, second = torch_backplane.device("reference"), torch_backplane.device("cpu_onednn")
    a, b = torch.ones(2, 2, device=first), torch.ones(2, 2, device=second)
    for pair in ((a, b), (a, torch.ones(2, 2))):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            pair[0] @ pair[1]
    assert (a + torch.tensor(1.0)).cpu().tolist() == [[2, 2], [2, 2]]
    assert torch.equal(a.to(second).cpu(), b.cpu())


def test_unknown_indices_and_plugins_are_named() -> None:
    torch_backplane.device("reference")
    with pytest.raises(RuntimeError, match=r"no device backplane:63; backplane:0 is "):
        torch.empty(2, device="backplane:63")
    with pytest.raises(torch_backplane.BackplaneError, match="BP-0104"):
        torch_backplane.device("reference", 99)
    with pytest.raises(torch_backplane.BackplaneError, match="BP-0103"):
        torch_backplane.device("refrence")
    with pytest.raises(torch_backplane.BackplaneError, match=r"BP-0104.*is an int, got '0'"):
        torch_backplane.device("reference", "0")
    with pytest.raises(torch_backplane.BackplaneError, match=r"BP-0103.*is a str, got 3"):
        torch_backplane.device(3, 0)


def test_many_threads_at_once(npu: torch.device) -> None:
    def work(seed: int) -> None:
        host = torch.full((64, 64), float(seed))
        for _ in range(20):
            there = host.to(npu)
            assert (there + there).sum().item() == 2 * seed * 64 * 64

    run_in_threads(work)


def test_draws_send_numbers_and_read_none(npu: torch.device) -> None:
    draws = {
        "uniform_": lambda t: t.uniform_(-1, 2),
        "normal_": lambda t: t.normal_(1, 2),
        "bernoulli_": lambda t: t.bernoulli_(0.3),
        "exponential_": lambda t: t.exponential_(),
        "strided": lambda t: t.t()[1:].normal_(),
    }
    for name, draw in draws.items():
        there, again = torch.zeros(30, 40, device=npu), torch.zeros(30, 40, device=npu)
        torch.manual_seed(3)
        with counting() as found:
            draw(there)
        assert found["device_to_host_bytes"] == 0 or name == "strided"
        assert sum(count for count, _ in found["eager_fallbacks"].values()) == 1
        torch.manual_seed(3)
        draw(again)
        assert torch.equal(there.cpu(), again.cpu()) and there.cpu().count_nonzero() > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.bool])
def test_reductions_over_nothing(npu: torch.device, dtype: torch.dtype) -> None:
    for host in (torch.empty(0, dtype=dtype), torch.empty(0, 3, dtype=dtype)):
        for name in ("any", "all", "sum", "prod", "count_nonzero"):
            for arguments in ((), (0,)):
                expected = getattr(host, name)(*arguments)
                assert torch.equal(getattr(host.to(npu), name)(*arguments).cpu(), expected), name


def test_booleans_are_no_numbers_that_were_seen_before(npu: torch.device) -> None:
    programs: list[Any] = [
        lambda x: x // 2,
        lambda x: x // False,
        lambda x: x % 2,
        lambda x: x % False,
        lambda x: x - 2,
        lambda x: x - True,
        lambda x: torch.rsub(x, 2),
        lambda x: torch.rsub(x, True),
    ]
    for program in programs:
        outcomes = []
        for place in (torch.device("cpu"), npu):
            try:
                outcomes.append(program(torch.arange(3, device=place)).tolist())
            except RuntimeError as error:
                outcomes.append(str(error).splitlines()[0])
        assert outcomes[0] == outcomes[1]


def test_what_is_on_the_host_is_written_by_nothing_on_the_device(npu: torch.device) -> None:
    scalar, host = torch.tensor(2.0, device=npu), torch.zeros(3)
    programs: list[Any] = [
        lambda: torch.tensor(1.0).add_(scalar),
        lambda: torch.tensor(1.0).fill_(scalar),
        lambda: torch.add(scalar, scalar, out=torch.tensor(0.0)),
        lambda: host.__setitem__(torch.tensor([0, 2]), scalar),
        lambda: host.__setitem__(host < 1, scalar),
    ]
    for program in programs:
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            program()


def test_what_is_on_the_host_is_not_indexed_from_the_device(npu: torch.device) -> None:
    host, index = torch.arange(6).reshape(3, 2), torch.tensor([0, 2], device=npu)
    programs: list[Any] = [
        lambda: host[index],
        lambda: host[index > 0],
        lambda: host.index_put((index,), torch.tensor(1)),
        lambda: host.__setitem__(index, 1),
    ]
    for program in programs:
        with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same"):
            program()
    assert host[:, index[0]].tolist() == [0, 2, 4]  # a number of the device is an int here
    assert index[torch.tensor([1])].cpu().tolist() == [2]


def test_what_is_put_at_indices_is_on_the_device(npu: torch.device) -> None:
    index, values = torch.tensor([0, 1]), torch.tensor([1.0, 2.0])
    target = torch.zeros(3, device=npu)
    programs: list[Any] = [
        lambda: target.index_put_((index,), values),
        lambda: target.index_put((index,), values, accumulate=True),
        lambda: target.__setitem__(index, values),
    ]
    for program in programs:
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            program()
    target[index] = torch.tensor(3.0)
    assert target.tolist() == [3, 3, 0]


OUT: dict[str, Callable[[torch.device, torch.Tensor], torch.Tensor]] = {
    "abs": lambda d, x: x.abs(),
    "isinf": lambda d, x: x.isinf(),
    "logical_or": lambda d, x: x.logical_or(x),
    "add": lambda d, x: torch.add(x, 1, out=torch.empty(0, device=d)),
    "wrong size": lambda d, x: torch.maximum(x, x, out=torch.empty(3, 3, device=d)),
    "cat": lambda d, x: torch.cat((x, x), out=torch.empty(0, device=d)),
    "pow": lambda d, x: torch.pow(x, 2, out=torch.empty(0, device=d)),
    "right size": lambda d, x: torch.add(x, 1, out=torch.empty(x.shape, device=d)),
}


@pytest.mark.parametrize("name", OUT)
def test_out_takes_the_strides_of_the_result(name: str, npu: torch.device) -> None:
    images = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    for tensor in (images, torch.randn(3, 4).t()):
        host = OUT[name](torch.device("cpu"), tensor)
        there = OUT[name](npu, tensor.to(npu))
        assert there.stride() == host.stride()
        close(there, host)


RESIZED: dict[str, Callable[[torch.device], torch.Tensor]] = {
    "ifft2": lambda d: torch.fft.ifft2(complexes(2, 3, 4).to(d), out=complexes(3).to(d)),
    "irfft": lambda d: torch.fft.irfft(complexes(3, 4).to(d), dim=0, out=torch.ones(3, device=d)),
    "irfft of many": lambda d: torch.fft.irfft(
        (complexes(30, 40) / 1000).to(d), dim=0, out=torch.ones(3, device=d)
    ),
    "ihfftn": lambda d: torch.fft.ihfftn(counted(2, 3, 4).to(d), out=complexes(3).to(d)),
    "cholesky_inverse": lambda d: torch.cholesky_inverse(
        (torch.eye(3) * 2).to(d), out=torch.ones(1, device=d)
    ),
    "ormqr": lambda d: torch.ormqr(
        *(x.to(d) for x in (counted(3, 3), counted(3), counted(3, 3))),
        out=torch.ones(1, device=d),
    ),
    "householder_product": lambda d: torch.linalg.householder_product(
        counted(4, 3).to(d), counted(3).to(d), out=torch.ones(1, device=d)
    ),
    "addbmm": lambda d: torch.addbmm(
        *(x.to(d) for x in (counted(3, 3), counted(2, 3, 3), counted(2, 3, 3))),
        out=torch.ones(1, device=d),
    ),
    "logsigmoid": lambda d: torch._C._nn.log_sigmoid(
        counted(3, 3).to(d), out=torch.ones(1, device=d)
    ),
    "narrow_copy": lambda d: torch.narrow_copy(
        counted(3, 3).to(d), 0, 0, 2, out=torch.ones(1, device=d)
    ),
    "add, turned": lambda d: torch.add(counted(30, 40).t().to(d), 1, out=torch.ones(1, device=d)),
    "add, empty": lambda d: torch.add(counted(30, 40).t().to(d), 1, out=torch.empty(0, device=d)),
}


def counted(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(sizes).numel()).reshape(sizes) / 7


def complexes(*sizes: int) -> torch.Tensor:
    return counted(*sizes).to(torch.complex64)


@pytest.mark.parametrize("name", RESIZED)
def test_an_output_is_resized_as_by_the_cpu(name: str, npu: torch.device) -> None:
    outcomes = []
    for device in (torch.device("cpu"), npu, npu):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            out = RESIZED[name](device)
        resized = sum("was resized" in str(one.message) for one in said)
        outcomes.append((out.stride(), resized))
        if device == npu:
            close(out, RESIZED[name](torch.device("cpu")))
    assert outcomes[1:] == [outcomes[0]] * 2


@pytest.mark.parametrize(
    "read", [lambda x: x + 1, lambda x: x.cpu(), lambda x: x.add_(1), lambda x: x.fill_(1)]
)
def test_memory_beyond_a_storage_is_not_touched(
    read: Callable[[torch.Tensor], torch.Tensor], npu: torch.device
) -> None:
    for left in (0, 4):
        there = torch.ones(3, device=npu)
        there.untyped_storage().resize_(left)
        with pytest.raises(RuntimeError, match="12 bytes of a storage that has"):
            read(there)
    there.untyped_storage().resize_(12)
    assert there.fill_(2).tolist() == [2, 2, 2]


def test_frequencies_are_written_to_the_device(npu: torch.device) -> None:
    for name in ("fftfreq", "rfftfreq"):
        for size in ((2, 2), (0,)):
            make = getattr(torch.fft, name)
            close(make(6, out=torch.zeros(size, device=npu)), make(6, out=torch.zeros(size)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_row_goes_into_any_shape_of_as_many_elements(
    dtype: torch.dtype, npu: torch.device
) -> None:
    rows: list[Callable[[torch.Tensor], Any]] = [
        lambda out: torch.arange(0, 4, out=out),
        lambda out: torch.linspace(1, 4, 4, out=out),
        lambda out: torch.logspace(0, 3, 4, out=out),
        lambda out: torch.arange(0, 5, out=out),
    ]
    for row in rows:
        outcomes = []
        for device in (torch.device("cpu"), npu):
            base = torch.zeros(2, 3, dtype=dtype, device=device)
            whole = torch.zeros(2, 2, dtype=dtype, device=device)
            part, alias = base.narrow(1, 1, 2), whole.view(-1)
            row(part)
            row(whole)
            outcomes.append((base.tolist(), whole.tolist(), alias.tolist(), part.tolist()))
        assert outcomes[0] == outcomes[1]


def test_generators_of_the_device_draw_nothing_on_the_host(npu: torch.device) -> None:
    generator = torch.Generator(npu)
    programs: list[Any] = [
        lambda: torch.rand(3, generator=generator),
        lambda: torch.randperm(3, generator=generator),
        lambda: torch.ones(3).normal_(generator=generator),
        lambda: torch.multinomial(torch.ones(2), 1, generator=generator),
    ]
    for program in programs:
        with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
            program()
    assert torch.randperm(4, device=npu, generator=generator).sum() == 6


def outcome(program: Callable[[], Any]) -> Any:
    try:
        return program().tolist()
    except (RuntimeError, IndexError) as error:
        return str(error).splitlines()[0]


@pytest.mark.parametrize(
    "place",
    [
        (-4, (4,), (1,)),
        (-1, (3,), (1,)),
        (0, (3,), (-1,)),
        (0, (-3,), (1,)),
        (0, (3,), (1, 1)),
        (0, (1 << 62, 4), (1 << 62, 1)),
    ],
    ids=str,
)
def test_no_memory_outside_of_a_storage_is_taken(
    place: tuple[int, tuple[int, ...], tuple[int, ...]], npu: torch.device
) -> None:
    x, y = torch.ones(4, device=npu), torch.empty(0, device=npu)
    with pytest.raises(RuntimeError):
        y.set_(x.untyped_storage(), *place)
    assert (y.shape, y.stride(), y.storage_offset()) == ((0,), (1,), 0)
    assert x.untyped_storage().nbytes() == 16
    y.set_(x.untyped_storage(), 1, (2, 2), (2, 1))
    assert x.untyped_storage().nbytes() == 20 and y[0].tolist() == [1, 1]


def set_as_it_lies(device: torch.device) -> torch.Tensor:
    storage = torch.ones(2, device=device).untyped_storage()
    return torch.ones(4, device=device).set_(storage, 0, (4,), (1,))


def set_keeps_strides(device: torch.device) -> torch.Tensor:
    storage = torch.arange(9.0, device=device).untyped_storage()
    return torch.ones(3, 3, device=device).t().set_(storage, 0, (3, 3))


def set_without_elements(device: torch.device) -> torch.Tensor:
    storage = torch.ones(2, device=device).untyped_storage()
    there = torch.ones(4, device=device).set_(storage, 100, (0,))
    there.resize_(0, 3)
    return torch.tensor([there.storage_offset(), storage.nbytes()])


def resize_alias(device: torch.device) -> torch.Tensor:
    return alias_of(torch.ones(4, device=device)).resize_(9)


def resize_storage_of_alias(device: torch.device) -> torch.Tensor:
    there = alias_of(torch.ones(4, device=device))
    there.untyped_storage().resize_(64)
    return there


def write_larger_result_to_alias(device: torch.device) -> torch.Tensor:
    return torch.add(torch.ones(9, device=device), 1, out=alias_of(torch.ones(4, device=device)))


def resize_to_no_format(device: torch.device) -> torch.Tensor:
    return torch.ones(4, device=device).resize_(2, 2, memory_format=torch.preserve_format)


@pytest.mark.parametrize(
    "call",
    [
        *(set_as_it_lies, set_keeps_strides, set_without_elements, resize_alias),
        *(resize_storage_of_alias, write_larger_result_to_alias, resize_to_no_format),
    ],
)
def test_storages_grow_where_those_of_the_cpu_do(
    call: Callable[[torch.device], torch.Tensor], npu: torch.device
) -> None:
    assert outcome(lambda: call(npu)) == outcome(lambda: call(torch.device("cpu")))


def test_a_size_that_is_refused_changes_nothing(npu: torch.device) -> None:
    there = torch.arange(4.0, device=npu)
    for size in (-3, 1 << 61):
        with pytest.raises(RuntimeError):
            there.resize_(size)
    assert there.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("sizes", [(0,), (3,), (0, 3)], ids=str)
def test_a_copy_is_of_sizes_that_fit(sizes: tuple[int, ...], npu: torch.device) -> None:
    for source in (torch.ones(5), torch.ones(2, 3), torch.ones(1, 1, 3), torch.ones(1)):
        expected = outcome(lambda source=source: torch.zeros(sizes).copy_(source))
        for of, to in ((npu, npu), ("cpu", npu), (npu, "cpu")):
            moved, target = source.to(of), torch.zeros(sizes, device=to)
            assert outcome(lambda m=moved, t=target: t.copy_(m)) == expected


def test_an_operand_is_not_resized_as_output(npu: torch.device) -> None:
    programs: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
        lambda x, wide: torch.add(x, wide, out=x),
        lambda x, wide: torch.clamp(x, wide, out=x),
        lambda x, wide: torch.where(wide > 0, x, x, out=x),
        lambda x, wide: torch.add(x, wide[0], out=x),
        lambda x, wide: torch.add(x[:], wide[0], out=x),
    ]
    for program in programs:
        outcomes = []
        for device in (torch.device("cpu"), npu):
            x, wide = torch.ones(2, device=device), torch.zeros(3, 2, device=device)
            outcomes.append((outcome(lambda p=program, x=x, w=wide: p(x, w)), x.tolist()))
        assert outcomes[0] == outcomes[1]


def test_windows_and_quasirandom_numbers(npu: torch.device) -> None:
    for options in ({}, {"periodic": False}, {"periodic": True, "beta": 6.0}):
        close(torch.kaiser_window(4, device=npu, **options), torch.kaiser_window(4, **options))
    out = torch.empty(4, device=npu)
    close(torch.ops.aten.kaiser_window.out(4, out=out), torch.kaiser_window(4))
    states = []
    for device in (torch.device("cpu"), npu):
        state = torch.zeros(2, 30, dtype=torch.long, device=device)
        torch._sobol_engine_initialize_state_(state, 2)
        states.append(state.tolist())
    assert states[0] == states[1]


def test_indices_of_another_device_are_refused() -> None:
    first, second = torch_backplane.device("reference"), torch_backplane.device("cpu_onednn")
    there, index = torch.arange(3.0, device=first), torch.tensor([0, 2], device=second)
    for program in (lambda: there[index], lambda: there.__setitem__(index, 1)):
        with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same"):
            program()
    assert there[index.cpu()].tolist() == [0, 2]


aten = torch.ops.aten
ROWS = torch.arange(1.0, 13).view(3, 4)
ADDRESS_READERS: dict[str, Callable[[torch.device], Any]] = {
    "batch_norm": lambda d: aten._batch_norm_no_update(
        ROWS.view(1, 3, 4).to(d), None, None, ROWS[:, 0].to(d), ROWS[:, 1].to(d), 0.1, 1e-5
    )[0],
    "pruned": lambda d: aten._rowwise_prune(
        ROWS.to(d), torch.tensor([True, False, True], device=d), torch.int32
    )[0],
    "saturated": lambda d: aten._saturate_weight_to_fp16(ROWS.to(d) * 1e5),
    "parameters": lambda d: aten.choose_qparams_optimized(ROWS.view(-1).to(d), 12, 10, 0.1, 8)[0],
    "quantized": lambda d: aten.fbgemm_linear_quantize_weight(ROWS.to(d))[0],
    "lazy": lambda d: torch._lazy_clone(ROWS.to(d).t()[1:]),
    "solved": lambda d: aten._cholesky_solve_helper(
        torch.ones(0, 3, device=d), torch.ones(0, 3, device=d), True
    ),
}


@pytest.mark.parametrize("name", ADDRESS_READERS)
def test_no_operator_reads_an_address_of_the_device(name: str, npu: torch.device) -> None:
    actual, expected = (ADDRESS_READERS[name](d) for d in (npu, torch.device("cpu")))
    assert actual.device == npu and actual.stride() == expected.stride()
    torch.testing.assert_close(actual.cpu(), expected)


def test_packed_weights_of_the_host_are_refused(npu: torch.device) -> None:
    packed = aten.fbgemm_pack_gemm_matrix_fp16(torch.ones(4, 4))
    with pytest.raises(RuntimeError, match="same device"):
        aten.fbgemm_linear_fp16_weight_fp32_activation(
            torch.ones(2, 4, device=npu), packed, torch.zeros(4)
        )


def test_cells_refuse_gates_of_another_size(npu: torch.device) -> None:
    three = torch.ones(3, 3, device=npu)
    with pytest.raises(RuntimeError, match="gates of 4 times"):
        aten._thnn_fused_lstm_cell(three, three, three)
    with pytest.raises(RuntimeError, match="gates of 3 times"):
        aten._thnn_fused_gru_cell(three, three, three)


def test_a_lazy_clone_is_apart(npu: torch.device) -> None:
    there = torch.ones(3, device=npu)
    clone = torch._lazy_clone(there)
    there.add_(1)
    assert clone.tolist() == [1, 1, 1]
