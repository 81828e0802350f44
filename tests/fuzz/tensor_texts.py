"""What programs over tensors say, as texts with holes, and the definitions that they use.

F: a tensor of floating point, S: one of the same sizes as the last F, R: one that requires
gradients, L: a leaf that does, W: one that may be written, Z: a complex one, T: any tensor; I: a small
integer, C: a number, M: the mode of an argument. ``@`` is a new name, ``@b`` another.
"""

from __future__ import annotations

from fuzz.definitions import DEFINITIONS as OF_PROGRAMS
from fuzz.expressions import rows

VALUES = rows(
    "@ = {F} + {S}",
    "@ = {F} * {S}",
    "@ = {F} * {C}",
    "@ = {F} - {S}",
    "@ = {F}.sin()",
    "@ = {F}.tanh()",
    "@ = {F}.relu()",
    "@ = {F}.sum()",
    "@ = {F}.mean(-1)",
    "@ = {F}.sum(0, keepdim=True)",
    "@ = {F} @ {F}",
    "@ = {F}.abs().sqrt()",
    "@ = {F}.pow(2)",
    "@ = torch.where({F} > 0, {S}, {C})",
    "@ = torch.cat([{F}, {S}])",
    "@ = torch.stack([{F}, {S}], -1)",
    "@ = {F}.softmax(-1)",
    (2, "@ = {F}.cumsum(0)"),
    (2, "@ = {F}.max(0).values"),
    (2, "@ = {F}.sort(-1)[0]"),
    (2, "@ = {F}[torch.tensor([0, 0])]"),
    (2, "@ = {F}.index_select(0, torch.tensor([0]))"),
    (2, "@ = {F}.gather(0, torch.zeros({F}.shape, dtype=torch.long))"),
    (2, "@ = {F}[{F} > 0]"),
    (2, "@ = torch.nn.functional.pad({F}, (1, 1))"),
    (2, "@ = torch.einsum('ij,kj->ik', {F}, {F})"),
    (2, "@ = torch.addmm({F}, {F}, {F}.t())"),
    (2, "@ = torch.lerp({F}, {S}, 0.5)"),
    (2, "@ = {F}.to(torch.float64)"),
    (2, "@ = {F}.float()"),
    (2, "@ = {F} > {C}"),
    (2, "@ = {F}.long()"),
    (2, "@ = torch.nn.functional.layer_norm({F}, {F}.shape[-1:])"),
    (2, "@ = torch.nn.functional.linear({F}, {F})"),
    (2, "@ = torch.nn.functional.mse_loss({F}, {S})"),
    (2, "@ = {F}.norm()"),
    (2, "@ = {F}.prod()"),
    (1, "@ = torch.linalg.det({F}[:2, :2])"),
    (1, "@ = torch.rand_like({F}) * 0"),
    (1, "@ = torch.nn.functional.dropout({F}, 0.0)"),
    (1, "@ = torch.complex({F}, {S}).abs()"),
    (1, "@ = torch.view_as_real(torch.complex({F}, {S}))"),
    (1, "@ = torch.nn.functional.embedding(torch.tensor([0, 0, 1]), {F})"),
    (1, "@ = torch.tensor([{F}.sum().item(), {C}])"),
    (1, "@ = torch.nan_to_num({F}.log())"),
    (3, "@ = {F}.clone()"),
    (2, "@ = {F}.contiguous()"),
    (1, "@ = {F}.clone(memory_format=torch.contiguous_format)"),
    (1, "@ = copy.copy({F})"),
    (1, "@ = copy.deepcopy({F}.detach())"),
)
VIEWS = rows(
    "@ = {F}.t()",
    "@ = {F}[0]",
    "@ = {F}[:, 1:]",
    "@ = {F}[1:]",
    "@ = {F}[..., ::2]",
    "@ = {F}.view(-1)",
    "@ = {F}.reshape(-1)",
    "@ = {F}.unsqueeze(0)",
    "@ = {F}.squeeze()",
    "@ = {F}.transpose(-1, 0)",
    "@ = {F}.expand(2, *{F}.shape)",
    "@ = {F}.expand_as({S})",
    "@ = {F}.as_strided((2, 2), (1, 2))",
    "@ = {F}.as_strided((2,), (3,), 1)",
    "@ = {F}.diagonal()",
    "@ = {F}.narrow(0, 1, 1)",
    "@ = {F}.unfold(-1, 2, 1)",
    "@ = {F}.split(1)[0]",
    "@ = {F}.chunk(2, -1)[1]",
    "@ = {F}.unbind(0)[1]",
    "@, _ = {F}.split([1, 1])",
    "@ = {F}.detach()",
    "@ = {F}.data",
    "@ = {F}[None]",
    "@ = {F}.flatten()",
    "@ = {F}.select(-1, 0)",
    "@ = {F}.permute(*reversed(range({F}.dim())))",
    "@ = {F}.view_as({S})",
    "@ = {F}.movedim(0, -1)",
    "@ = {F}.swapaxes(0, -1)",
    (2, "@ = {F}.detach().view(torch.int32)"),
    (2, "@ = torch.atleast_2d({F})"),
    (2, "@ = {F}.ravel()"),
    (2, "@ = {F}.real"),
    (2, "@ = {F}.conj()"),
    (2, "@ = {F}.to({F}.dtype)"),
    (2, "@ = {F}.mT"),
    (2, "@ = torch.broadcast_tensors({F}, {S})[0]"),
    (2, "@ = torch.broadcast_to({F}, (2, *{F}.shape))"),
    (1, "@ = {F}.alias() if hasattr({F}, 'alias') else {F}"),
    (1, "@ = {F}.tensor_split(2)[0]"),
    (1, "@ = {F}.hsplit(1)[0]"),
    (1, "@ = {F}.unflatten(0, (1, -1))"),
    (1, "@ = torch.as_tensor({F})"),
    (1, "@ = {F}"),
)
MAKES = rows(
    "@ = torch.ones(3, requires_grad=True)",
    "@ = torch.full((2, 3), {C}, requires_grad={M})",
    "@ = torch.zeros_like({F})",
    "@ = torch.zeros_like({F}, requires_grad=True)",
    "@ = torch.ones_like({F})",
    "@ = {F}.new_zeros(2, 3)",
    "@ = {F}.new_ones({F}.shape, requires_grad={M})",
    "@ = {F}.new_empty({F}.shape).copy_({F})",
    "@ = torch.empty_strided((3, 2), (1, 3)).fill_({C})",
    "@ = torch.tensor([{C}, {C}], requires_grad={M})",
    "@ = torch.arange(6.0).view(2, 3)",
    "@ = torch.nn.Parameter({F}.detach().clone())",
    "@ = {F}.detach().clone().requires_grad_()",
    "@ = {F}.detach().clone().requires_grad_({M})",
    "@ = {F}.detach().requires_grad_()",
    "@ = torch.tensor({F}.tolist())",
    (1, "@ = torch.from_numpy({F}.detach().numpy())"),
    (1, "@ = torch.asarray({F}.detach().numpy())"),
)
WRITES = rows(
    "{W}.add_({S})",
    "{W}.mul_({C})",
    "{W} += {C}",
    "{W} *= {S}",
    "{W}.copy_({S})",
    "{W}.copy_({F})",
    "{W}.fill_({C})",
    "{W}.zero_()",
    "{W}[0] = {C}",
    "{W}[0] = {F}",
    "{W}[:, 1] += {C}",
    "{W}[..., 0] *= {C}",
    "{W}[1:] = {F}",
    "{W}.view(-1)[:2] = {C}",
    "{W}.t().mul_({C})",
    "{W}.diagonal().fill_({C})",
    "{W}.detach().add_({C})",
    "{W}.as_strided((2,), (2,)).add_({C})",
    "{W}.masked_fill_({W} > 0, {C})",
    "{W}[{W} > 0] = {C}",
    "{W}.index_put_((torch.tensor([0, 1]),), {F})",
    "{W}.index_add_(0, torch.tensor([0]), {F}[:1])",
    "{W}.scatter_(0, torch.zeros((1, 2), dtype=torch.long), {C})",
    "{W}.clamp_(min={C})",
    "{W}.relu_()",
    "{W}.neg_()",
    "{W}.t_()",
    "{W}.unsqueeze_(0)",
    "{W}.squeeze_()",
    "{W}.transpose_(0, -1)",
    "{W}.detach_()",
    "{W}.requires_grad_()",
    "{W}.requires_grad_({M})",
    "{W}.requires_grad = {M}",
    "torch.add({F}, {S}, out={W})",
    "torch.mul({F}, {C}, out={W}.detach())",
    "torch._foreach_add_([{W}, {W}], {C})",
    "torch._foreach_mul_([{W}, {W}], [{C}, {C}])",
    "{W}.lerp_({S}, 0.5)",
    "{W}.addcmul_({F}, {S}, value={C})",
    "{W}.sub_({S}, alpha=2)",
    "{W}.cumsum_(0)",
    "{W}.exp_()",
    (1, "{W}.apply_(lambda v: v * 2)"),
    (1, "torch.nn.init.constant_({W}, {C})"),
    (1, "torch.nn.functional.relu({W}, inplace=True)"),
    (1, "torch.nn.functional.dropout({W}, 0.0, inplace=True)"),
)
# Several views of one operator, complex tensors, and whose memory a tensor has. Nothing grows: what
# is new in a storage is nobody's number.
SHARES = rows(
    "@, @b = {F}.unbind(0)",
    "@, @b = {F}.chunk(2, -1)",
    "@, @b = {F}.split([1, 1])",
    "@, @b = {F}.tensor_split(2)",
    "@ = {F}.hsplit(2)[1]",
    "@, @b = torch.unbind({F}.detach())",
    "@ = torch.complex({F}, {S})",
    "@ = {Z} * 2",
    "@ = {Z}[1:]",
    "@ = {Z}.conj()",
    "@ = {Z}.real",
    "@ = {Z}.imag",
    "@ = {Z}.conj().imag",
    "@ = {Z}.mH",
    "@ = {Z}.resolve_conj()",
    "@ = torch.view_as_real({Z})",
    "@ = torch.view_as_complex({F}[..., :2])",
    "@ = {F}.resolve_neg()",
    "{Z}.mul_(1j)",
    "{Z}.conj_physical_()",
    "{Z}.real.fill_({C})",
    "{Z}.imag.zero_()",
    "@ = {T}.detach()",
    "@ = {T}.data",
    "@ = torch.ops.aten.alias({T})",
    "@ = {T}.view_as({T})",
    "@ = torch.ops.aten._unsafe_view({F}, (-1,))",
    "@ = {F}.new_empty(0).set_({S})",
    "@ = {F}.detach().clone().resize_(1)",
    "@ = torch.nn.Parameter({F}.detach())",
    "{W}.set_({S})",
    "{W}.set_({F}.untyped_storage(), 0, (1,), (1,))",
    "{W}.resize_(1, 1)",
    "{W}.data = {F}",
    "{W}.data = {W}.data[:1]",
    "{W}.data.add_({C})",
    "{W}.squeeze_().unsqueeze_(-1)",
    "with torch.no_grad(): @ = {F}[1:]",
    "with torch.no_grad(): @, @b = {F}.unbind(0)",
    "with torch.no_grad(): @ = {T}.view(-1)",
    "with torch.inference_mode(): @ = {F}[1:]",
    "with torch.inference_mode(): @ = {F} * 2",
    "with torch.inference_mode(): @, @b = {F}.chunk(2)",
    "with torch.no_grad(): {W}.mul_({C})",
)
GRADIENTS = rows(
    "{R}.sum().backward()",
    "{R}.sum().backward(retain_graph=True)",
    "{R}.sin().sum().backward(retain_graph=True, create_graph={M})",
    "{R}.backward(torch.ones_like({R}))",
    "torch.autograd.backward([{R}.sum(), {R}.sum()])",
    (8, "(@,) = torch.autograd.grad({R}.exp().sum(), [{R}])"),
    (8, "(@,) = torch.autograd.grad({R}.exp().sum(), [{L}], retain_graph=True)"),
    (8, "(@,) = torch.autograd.grad({R}.sin().sum(), [{R}], create_graph=True)"),
    "@, _ = torch.autograd.grad({R}.exp().sum(), [{L}, {R}], create_graph={M}, allow_unused=True)",
    "(@,) = torch.autograd.grad({R}, {R}, grad_outputs=torch.ones_like({R}), materialize_grads=True, allow_unused=True)",
    "@ = {L}.grad",
    "@ = {R}.grad",
    "{L}.grad = None",
    "{L}.grad = torch.ones_like({L})",
    "{L}.grad.zero_()",
    "{L}.grad.add_({C})",
    "{L}.grad *= {C}",
    "facts.append({L}.grad is None)",
    "{R}.retain_grad()",
    "facts.append({R}.retains_grad)",
    "{R}.register_hook(lambda g: g * 2)",
    "{R}.register_hook(lambda g: None)",
    "{R}.register_hook(noted(log, {I}))",
    "hook = {R}.register_hook(noted(log, {I})); hook.remove()",
    "{L}.register_post_accumulate_grad_hook(lambda t: log.append(t.grad.dim()))",
    "with torch.no_grad(): {L}.add_({C})",
    "with torch.no_grad(): {L}.sub_({L}.grad, alpha=0.5)",
    "torch.optim.SGD([{L}], lr=0.5, momentum={C} % 1).step()",
    "torch.nn.utils.clip_grad_norm_([{L}], 1.0)",
    (2, "torch.optim.Adam([{L}], lr=0.5).zero_grad()"),
    (2, "torch.autograd.forward_ad.make_dual({F}, {S})"),
)
FACTS = rows(
    "facts.append({T}.requires_grad)",
    "facts.append({T}.is_leaf)",
    "facts.append({T}.grad_fn is None)",
    "facts.append({T}.stride())",
    "facts.append({T}.storage_offset())",
    "facts.append({T}.is_contiguous())",
    "facts.append({T}.data_ptr() == {T}.data_ptr())",
    "facts.append(tuple({T}.shape))",
    "facts.append({T}.dtype)",
    "facts.append(torch.is_grad_enabled())",
    "facts.append({F}.sum().item())",
    "facts.append(bool({F}.sum() > 0))",
    "facts.append(torch.equal({F}, {S}))",
    "facts.append({T} is {T})",
    "facts.append({F}.tolist())",
    "facts.append(type({T}).__name__)",
    "facts.append({T}.is_inference())",
    "facts.append({T}.untyped_storage().data_ptr() == {T}.untyped_storage().data_ptr())",
    "facts.append({T}._is_view())",
    "facts.append({T}._base is None)",
    "facts.append({T}._base is {T})",
    "facts.append({T}._version)",
    "facts.append({T}.is_conj())",
    "facts.append({T}.is_neg())",
    "facts.append({T}.retains_grad)",
    "facts.append({L}.output_nr)",
    "facts.append(str({T}.layout))",
    "facts.append({T}.untyped_storage().nbytes())",
    (4, "facts.append(shown({T}))", ("shown",)),
    "print({F}.sum().item() > 0)",
    "log.append({I})",
    "kept.append({F})",
    "held['t'] = {F}",
    "@ = kept[-1] * 2",
    "@ = held['t']",
    "broken()",
    "broken()",
    (2, "facts.append({T}.is_set_to({T}))"),
    (2, "facts.append(str({T}.dtype))"),
    (2, "facts.append({T}.element_size() * {T}.numel())"),
)
CALLS = rows(
    (3, "@ = Doubled.apply({F})", ("Doubled",)),
    (3, "@, _ = Halves.apply({F}, {C})", ("Halves",)),
    (3, "@ = Written.apply({W})", ("Written",)),
    (3, "@ = Sparse.apply({F}, {F})", ("Sparse",)),
    (3, "@ = torch.func.grad(lambda t: (t.sin() * {C}).sum())({F})"),
    (2, "@ = torch.func.grad(lambda t: (t * {F}).sum())({S})"),
    (2, "@ = torch.func.vmap(lambda t: t.sum() * {C})({F})"),
    (2, "@ = torch.func.vmap(lambda t, u: t * u)({F}, {S})"),
    (2, "@ = torch.func.jvp(lambda t: t.sin(), ({F},), ({S},))[1]"),
    (2, "@ = torch.func.vjp(lambda t: t.sin(), {F})[1]({S})[0]"),
    (2, "@ = torch.func.jacrev(lambda t: t.view(-1).sin())({F})"),
    (1, "@ = torch.func.hessian(lambda t: t.pow(3).sum())({F})"),
    (2, "@ = torch.utils.checkpoint.checkpoint(torch.sin, {F}, use_reentrant=False)"),
    (2, "@ = torch.utils.checkpoint.checkpoint(lambda t: t.sin() * 2, {F}, use_reentrant=False)"),
    (2, "@ = layer({F})", ("layer",)),
    (
        2,
        "@ = torch.func.functional_call(layer, {{'weight': {F}}}, (torch.ones(2, 3),))",
        ("layer",),
    ),
    (2, "layer.zero_grad()", ("layer",)),
    (2, "@ = layer.weight", ("layer",)),
    (2, "@ = layer.weight.grad", ("layer",)),
    (2, "@ = norm({F})", ("norm",)),
    (2, "norm.train({M})", ("norm",)),
    (2, "@ = norm.running_mean", ("norm",)),
    (2, "@ = doubled_op({F})", ("doubled_op",)),
    (2, "written_op({W})", ("written_op",)),
)
# Most programs compute and differentiate; some ask what their tensors are.
KINDS = (
    (9, VALUES), (8, VIEWS), (4, MAKES), (8, WRITES), (7, GRADIENTS), (4, FACTS), (4, CALLS),
    (1, SHARES),
)  # fmt: skip
ASKING_KINDS = (
    (3, VALUES), (8, VIEWS), (2, MAKES), (5, WRITES), (1, GRADIENTS), (10, FACTS), (1, CALLS),
    (10, SHARES),
)  # fmt: skip

MANAGERS = (
    "torch.no_grad()",
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.set_grad_enabled(False)",
    "torch.inference_mode()",
    "torch.autocast('cpu', torch.bfloat16)",
    "torch.autograd.set_multithreading_enabled(False)",
    "torch.autograd.forward_ad.dual_level()",
    "contextlib.suppress(RuntimeError)",
)

DEFINITIONS: dict[str, str] = {
    # One node of a graph leads to all that its results depend on: hooks there are called with None.
    "noted": (
        "def noted(log, name):\n    def hook(gradient):\n        if gradient is not None:\n"
        "            log.append((name, tuple(gradient.shape), float(gradient.sum())))\n    return hook"
    ),
    "broken": "broken = torch_backplane.disable(lambda: None)",
    "Doubled": OF_PROGRAMS["Doubled"],
    "Halves": (
        "class Halves(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t, k):\n"
        "        ctx.k = k\n        ctx.set_materialize_grads(False)\n"
        "        shown = t > 0\n        ctx.mark_non_differentiable(shown)\n"
        "        return t * 0.5 * k, shown\n    @staticmethod\n    def backward(ctx, g, _):\n"
        "        return (None if g is None else g * 0.5 * ctx.k), None"
    ),
    "Written": (
        "class Written(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, t):\n"
        "        ctx.mark_dirty(t)\n        t.mul_(2)\n        return t\n    @staticmethod\n"
        "    def backward(ctx, g):\n        return g * 2"
    ),
    "Sparse": (
        "class Sparse(torch.autograd.Function):\n    @staticmethod\n    def forward(t, u):\n"
        "        return t.sum() * u.sum()\n    @staticmethod\n"
        "    def setup_context(ctx, inputs, output):\n        ctx.save_for_backward(*inputs)\n"
        "        ctx.needed = ctx.needs_input_grad\n    @staticmethod\n    def backward(ctx, g):\n"
        "        t, u = ctx.saved_tensors\n"
        "        return (g * u.sum()).expand(t.shape) if ctx.needed[0] else None, "
        "(g * t.sum()).expand(u.shape) if ctx.needed[1] else None"
    ),
    "layer": (
        "torch.manual_seed(0)\nlayer = torch.nn.Linear(3, 3)\n"
        "with torch.no_grad():\n    layer.weight.copy_(torch.arange(9.0).view(3, 3) / 8), layer.bias.fill_(0.5)"
    ),
    "norm": "norm = torch.nn.BatchNorm1d(3)",
    "doubled_op": (
        "@torch.library.custom_op('fuzzed::doubled', mutates_args=())\n"
        "def doubled_op(t: torch.Tensor) -> torch.Tensor:\n    return t * 2\n"
        "@doubled_op.register_fake\ndef _(t):\n    return torch.empty_like(t)\n"
        "doubled_op.register_autograd(lambda ctx, g: g * 2)"
    ),
    "written_op": (
        "@torch.library.custom_op('fuzzed::written', mutates_args=('t',))\n"
        "def written_op(t: torch.Tensor) -> None:\n    t.mul_(2)"
    ),
    "backward": (
        "def results_of(given):\n    value = given[1]\n"
        "    found = value if isinstance(value, (tuple, list)) else [value]\n"
        "    return [t for t in found if isinstance(t, torch.Tensor) and t.is_floating_point()]\n\n"
        "def backward(given, which, again=False):\n"
        "    loss = sum((t * t).sum() for t in results_of(given)[which:] if t.requires_grad)\n"
        "    if isinstance(loss, torch.Tensor):\n        loss.backward(retain_graph=again)\n"
        "        if again:\n            loss.backward()\n\n"
        "def twice(given, leaf):\n"
        "    loss = sum((t * t).sum() for t in results_of(given) if t.requires_grad)\n"
        "    (first,) = torch.autograd.grad(loss, [leaf], create_graph=True, allow_unused=True)\n"
        "    if first is not None and first.requires_grad:\n"
        "        (first * first).sum().backward()\n    return first\n\n"
        "def between(given, which):\n    results = results_of(given)\n"
        "    return torch.autograd.grad((results[-1] ** 2).sum(), results[which], retain_graph=True)\n\n"
        "def retained(given, which):\n    results_of(given)[which].retain_grad()\n"
        "    backward(given, 0)\n    return results_of(given)[which].grad\n\n"
        "def poke(given, which):\n    with torch.no_grad():\n"
        "        results_of(given)[which].add_(1)\n\n"
        "def asks(given):\n    return [(t.is_leaf, t.grad_fn is None, t.storage_offset(), "
        "t.is_inference()) for t in results_of(given)]"
    ),
    # What does not depend on who computed it: not whether it is a view of what nobody has.
    "shown": (
        "def shown(t):\n    if t is None:\n        return None\n    try:\n"
        "        return (\n"
        "            t.is_leaf, t.requires_grad, t.grad_fn is None, t.retains_grad, t.is_inference(),\n"
        "            None if t.is_inference() else t._version, t.is_conj(), t.is_neg(),\n"
        "            t.storage_offset(), str(t.layout), type(t).__name__,\n"
        "        )\n"
        "    except RuntimeError as error:  # autograd knows no more what it is a view of\n"
        "        return type(error).__name__"
    ),
    # What each tells of itself and of the others, and what a write through it does to them.
    "marked": (
        "def tensors_of(given):\n"
        "    value = given[1] if isinstance(given[1], (tuple, list)) else [given[1]]\n"
        "    return [t for t in value if isinstance(t, torch.Tensor)]\n\n"
        "def marked(tensors):\n"
        "    facts = [shown(t) for t in tensors]\n"
        "    facts += [[t._base is u for u in tensors] for t in tensors]\n"
        "    facts += [[t.data_ptr() == u.data_ptr() for u in tensors] for t in tensors]\n"
        "    for t in tensors:\n"
        "        for grad in (True, False):\n"
        "            try:\n"
        "                with torch.set_grad_enabled(grad):\n                    t.add_(1)\n"
        "            except RuntimeError as error:\n                facts.append(type(error).__name__)\n"
        "            for u in tensors:\n"
        "                facts.append(shown(u))\n"
        "    return facts"
    ),
}
