"""Programs whose point is what they do with tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from frontend.programs.catalog import attempt, program, scenario, x


@program((x(2, 6),), (x(3, 4),), (x(1, 2),))
def shape_arithmetic(a):
    batch, width = a.shape
    return a.view(batch, 2, width // 2).transpose(1, 2).reshape(batch, -1), a.size(-1) * 2


@program((x(2, 3, 4),))
def shape_methods(a):
    return (
        a.shape,
        a.size(),
        a.size(1),
        a.ndim,
        a.dim(),
        a.numel(),
        len(a),
        a.shape[:-1] + (7,),
        a.shape.numel(),
        a.stride(),
        a.is_contiguous(),
        a.nelement(),
        tuple(a.shape),
        list(a.shape),
        math.prod(a.shape),
    )


@program((x(2, 3),), (x(2, 3).double(),), (x(2, 3).long(),))
def type_queries(a):
    return a.dtype, a.dtype == torch.float32, a.is_floating_point(), a.element_size(), a.type()


@program((x(2, 3),))
def device_queries(a):
    zeros = torch.zeros(2, device=a.device)
    return zeros, a.device.type, a.is_cuda, a.device == torch.device("cpu"), str(a.device)


@program((x(2, 3), torch.float64), (x(2, 3), torch.int32), (x(2, 3), torch.bfloat16))
def conversions_of_dtype(a, dtype):
    return (
        a.to(dtype),
        torch.zeros(2, dtype=dtype),
        a.type(dtype),
        a.half().dtype,
        torch.finfo(a.dtype).min,
    )


@program((x(4, 5),))
def basic_indexing(a):
    return a[0], a[-1, 2], a[1:3], a[:, ::2], a[..., 1], a[None], a[:, None, :], a[1:, :-1]


@program((x(4, 5), torch.tensor([0, 2])))
def tensor_indexing(a, i):
    return a[i], a[:, i], a[i, i], a[[0, 1]], a[[0, 1], [2, 3]], a[i.unsqueeze(1), i]


@program((x(4, 5), 2, 1), (x(4, 5), 1, -1))
def integer_indexing(a, i, j):
    return a[i], a[i, j], a[i:, :j], a.select(0, i), a.narrow(1, 0, i)


@program((x(4, 5),))
def masked_where(a):
    mask = a > 0
    return (
        torch.where(mask, a, 0.0),
        a.masked_fill(~mask, -1),
        (mask & (a < 0.5)).sum(),
        mask.float(),
    )


@program((x(4, 5),))
def item_assignment_local(a):
    b = a.clone()
    b[0] = 1
    b[:, 1] = a[:, 2]
    b[b > 0.5] = 0
    b[1, 2:4] += 2
    b[..., -1] *= 3
    return b


@program((x(4, 5), x(4)))
def item_assignment_argument(a, b):
    a[:, 0] = b
    a[1] *= 2
    return a.sum(0)


@program((x(3), x(3)))
def in_place_methods(a, b):
    a.add_(b).mul_(2)
    b.zero_()
    return a - b


@program((x(3),))
def in_place_seen_through_view(a):
    b = a.clone()
    view = b[1:]
    view.add_(10)
    b[0] = 5
    return b, view


@program((x(2, 3),))
def in_place_on_view_of_argument(a):
    a.view(-1)[2] = 7
    a.t()[0].neg_()
    return a * 2


@scenario
def same_tensor_twice_program(compile):
    compiled = compile(lambda a, b: (a + b, a is b))
    t = x(3)
    yield compiled(t, x(3))
    yield compiled(t, t)
    yield compiled(t, x(3))


@scenario
def aliases_written_program(compile):
    def function(a, b):
        a.add_(1)
        return b * 2

    compiled = compile(function)
    for make in (
        lambda t: (t, x(4)),
        lambda t: (t, t),
        lambda t: (t, t[:]),
        lambda t: (t[:2], t[1:]),
    ):
        t = x(4)
        yield compiled(*make(t)), t


@program((x(3),))
def returns_aliases(a):
    b = a * 2
    return b, b, b[1:], a, a[:2], a.detach()


@program((x(2, 3),))
def many_results(a):
    values, indices = a.max(dim=1)
    first, second = a.chunk(2, dim=1) if a.shape[1] % 2 == 0 else a.split([1, 2], dim=1)
    mean, std = torch.std_mean(a)
    return values, indices, first, second, mean, std, a.min(0).indices, torch.sort(a).values


@program((x(2, 3),))
def named_results(a):
    result = torch.max(a, dim=0)
    top = a.topk(2)
    return result.values, result[1], top.indices, len(result)


@program((x(2, 3), x(3, 4)))
def operators_of_tensors(a, b):
    return a @ b, -a, +a, abs(a), a**2, 2**a, a // 0.5, a % 0.3, 1 - a, 1 / (a + 3), a.T @ a


@program((x(4).mul(10).long(), torch.tensor([3, 5, 6, 1])))
def integer_tensors(a, b):
    return a & b, a | b, a ^ b, ~a, a << 1, b >> 1, a // 2, a % b, a == b, a != 2


@program((x(3), x(3)))
def comparisons(a, b):
    return (
        a < b,
        a <= 0,
        a == b,
        a != 1,
        0.5 > a,
        (a > 0) | (b > 0),
        torch.equal(a.shape, b.shape) if False else a.shape == b.shape,
    )


@program((x(3),), (x(4),))
def constants_from_shape(a):
    n = a.shape[0]
    return (
        torch.arange(n),
        torch.eye(n),
        torch.ones(n, 2),
        a.new_full((n,), 2),
        torch.linspace(0, 1, n),
    )


@program((x(3),))
def constants_from_numbers(a):
    return (
        a + torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor(2),
        torch.tensor([[1, 2]]),
        torch.tensor(True),
    )


@program((x(3), 2.5), (x(3), 4.0))
def tensor_from_argument(a, f):
    return a * torch.tensor(f), torch.full((2,), f), torch.scalar_tensor(f)


@program((x(2, 3),))
def random_stream(a):
    return (
        torch.rand(2),
        torch.randn_like(a),
        F.dropout(a, 0.5),
        torch.randint(0, 5, (3,)),
        torch.randperm(4),
        torch.bernoulli(a.abs()),
        a.new_empty(3).uniform_(),
    )


@scenario
def random_after_seed_program(compile):
    def function(a):
        return a + torch.rand(3)

    compiled = compile(function)
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        yield compiled(x(3)), torch.rand(1)


@scenario
def gradients_program(compile):
    compiled = compile(lambda a, b: (a * b).sin().sum())
    for _ in range(2):
        a, b = x(3).requires_grad_(), x(3).requires_grad_()
        compiled(a, b).backward()
        yield a, b


@scenario
def gradient_of_some_program(compile):
    compiled = compile(lambda a, b: (a.exp() * b, b + 1))
    a, b = x(3).requires_grad_(), x(3)
    first, second = compiled(a, b)
    first.sum().backward()
    yield a, b, first.requires_grad, second.requires_grad
    b.requires_grad_()
    first, second = compiled(a, b)
    second.sum().backward()
    yield a, b


@scenario
def detached_program(compile):
    def function(a):
        b = a * 2
        return b * b.detach() + a.data

    compiled = compile(function)
    a = x(3).requires_grad_()
    compiled(a).sum().backward()
    yield a


@scenario
def no_grad_part_program(compile):
    def function(a):
        with torch.no_grad():
            scale = a.abs().mean()
        return a * scale

    compiled = compile(function)
    a = x(3).requires_grad_()
    compiled(a).sum().backward()
    yield a


@scenario
def grad_mode_of_caller_program(compile):
    compiled = compile(lambda a: (a * 2, torch.is_grad_enabled()))
    a = x(3).requires_grad_()
    yield compiled(a)
    with torch.no_grad():
        yield compiled(a)
    with torch.inference_mode():
        yield compiled(x(3))
    yield compiled(a)


@scenario
def requires_grad_query_program(compile):
    compiled = compile(lambda a: a * 2 if a.requires_grad else a * 3)
    yield compiled(x(3))
    yield compiled(x(3).requires_grad_())


@scenario
def default_dtype_program(compile):
    compiled = compile(lambda a: (torch.ones(2), a + 1, torch.get_default_dtype()))
    yield compiled(x(3))
    torch.set_default_dtype(torch.float64)
    try:
        yield compiled(x(3))
    finally:
        torch.set_default_dtype(torch.float32)


@scenario
def autocast_of_caller_program(compile):
    compiled = compile(lambda a: (a @ a).float())
    yield compiled(x(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        yield compiled(x(4, 4))
    yield compiled(x(4, 4))


@scenario
def strides_change_program(compile):
    compiled = compile(lambda a: (a.reshape(-1), a.is_contiguous(), a.stride()))
    yield compiled(x(3, 4))
    yield compiled(x(4, 3).t())
    yield compiled(x(3, 8)[:, ::2])


@scenario
def sizes_change_program(compile):
    compiled = compile(lambda a: (a.sum(0), a.shape[0], a * a.shape[1]))
    for n in (2, 3, 1, 5, 0, 2):
        yield compiled(x(n, 3) if n else torch.zeros(0, 3))


@scenario
def dtypes_change_program(compile):
    compiled = compile(lambda a: (a + 1, a.dtype))
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.float32):
        yield compiled(torch.ones(3, dtype=dtype))


@scenario
def dimensions_change_program(compile):
    compiled = compile(lambda a: a.sum(-1) if a.dim() > 1 else a)
    yield compiled(x(3))
    yield compiled(x(2, 3))
    yield compiled(x(2, 3, 1))


@program((x(2, 4, 8), x(2, 4, 8)))
def attention_by_hand(q, k):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
    return torch.softmax(scores + mask, dim=-1) @ k


@program((x(2, 4, 8),))
def attention_of_torch(a):
    return F.scaled_dot_product_attention(a, a, a, is_causal=True)


@program((x(2, 6),))
def norms(a):
    return (
        F.layer_norm(a, (6,)),
        F.normalize(a, dim=-1),
        a.norm(),
        torch.linalg.vector_norm(a),
        F.softmax(a, -1),
    )


@program((x(2, 3, 8, 8), x(4, 3, 3, 3)))
def convolution(a, w):
    b = F.conv2d(a, w, padding=1, stride=2)
    return (
        F.max_pool2d(b, 2),
        F.adaptive_avg_pool2d(b, 1).flatten(1),
        F.interpolate(a, scale_factor=2),
    )


@program((x(3, 4), torch.tensor([0, 2, 1])))
def losses(a, target):
    return F.cross_entropy(a, target), F.mse_loss(a, a * 2), F.nll_loss(a.log_softmax(1), target)


@program((x(2, 3), x(3, 4)))
def einsum(a, b):
    return torch.einsum("ij,jk->ik", a, b), torch.einsum("ij->ji", a)


@program((x(2, 3),))
def joins(a):
    return (
        torch.cat([a, a], 1),
        torch.stack((a, a)),
        torch.hstack([a, a]),
        a.repeat(2, 1),
        a.expand(2, 2, 3),
    )


@program((x(2, 3, 4),))
def rearrangements(a):
    return (
        a.permute(2, 0, 1),
        a.flatten(1),
        a.unflatten(2, (2, 2)),
        a.squeeze(),
        a.movedim(0, 1),
        a.swapaxes(0, 2),
        a.roll(1),
        a.flip(0),
    )


@program((x(3, 5), torch.tensor([[0, 1, 2, 0, 0]])))
def scatter_with_dtype_of_source(src, index):
    return torch.zeros(3, 5, dtype=src.dtype).scatter_(0, index, src)


@program((x(4, 3), torch.tensor([[0], [1], [0], [2]])))
def gathers(a, i):
    return (
        a.gather(1, i),
        a.index_select(0, torch.tensor([1, 0])),
        a.take_along_dim(i, 1),
        F.one_hot(i),
    )


@program((x(3, 4),))
def reductions(a):
    return (
        a.sum(),
        a.mean(0),
        a.var(1),
        a.amax(),
        a.argmax(-1),
        a.cumsum(0),
        a.logsumexp(1),
        a.prod(),
        a.all(),
        a.any(),
    )


@program((x(3), x(4)))
def broadcast_error(a, b):
    return (a.unsqueeze(1) + b), a + b


@program((x(3),))
def unknown_attribute(a):
    return a.no_such_thing


@program((x(3),))
def attribute_of_own_tensor(a):
    b = a + 1
    b.tag = "mine"
    return b, b.tag, hasattr(a, "tag"), getattr(a, "tag", 3)


@program((x(3),))
def tensor_in_conditions(a):
    b = a if a is not None else 0
    return b, isinstance(a, torch.Tensor), torch.is_tensor(a), type(a) is torch.Tensor, a is b


@program((torch.tensor(3.0),))
def zero_dimensional(a):
    return a + 1, a.shape, a.dim(), a.view(1), torch.stack([a, a])


@program((torch.zeros(0, 3),))
def empty_tensors(a):
    return a + 1, a.sum(), a.shape, torch.cat([a, x(1, 3)]), a.numel() == 0


@program((torch.view_as_complex(x(3, 2)),))
def complex_tensors(a):
    return a * 2j, a.real, a.imag, a.conj() * a, torch.view_as_real(a), a.abs()


@scenario
def out_arguments_program(compile):
    def function(a, out):
        torch.add(a, 1, out=out)
        return out * 2

    compiled = compile(function)
    out = torch.zeros(3)
    yield compiled(x(3), out), out
    yield compiled(x(3) * 2, out), out


@program((x(3),))
def foreach_functions(a):
    return torch._foreach_add([a, a * 2], 1), torch._foreach_mul([a], [a])


@program((x(2, 3), x(2, 3)))
def tensor_functions_by_name(a, b):
    out = [getattr(a, name)() for name in ("sin", "relu", "neg")]
    return out, getattr(torch, "maximum")(a, b), getattr(F, "gelu")(a)


@scenario
def vmap_program(compile):
    compiled = compile(lambda a: torch.vmap(lambda row: row * row.sum())(a))
    yield compiled(x(3, 4))


@scenario
def gradient_inside_program(compile):
    def function(a):
        (gradient,) = torch.autograd.grad((a * a).sum(), a)
        return gradient

    compiled = compile(function)
    yield attempt(compiled, x(3).requires_grad_())
