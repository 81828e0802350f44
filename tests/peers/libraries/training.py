"""What trains: optimizers, averages of weights, loops, adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from peers.libraries.common import Compile, both, integers, program, train_case
from peers.torch_suites import Case

STEPS = 4


def _net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))


def _train(
    compile_: Compile,
    net: torch.nn.Module,
    optimizer: Any,
    whole: bool = False,
    after: Callable[[], None] = lambda: None,
) -> Iterator[tuple[str, Any]]:
    """Steps of a compiled net, or of a compiled step where ``whole``."""
    called = net if whole else compile_(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(called(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = compile_(step) if whole else step
    for number in range(STEPS):
        count = 6 if number < STEPS - 1 else 3
        loss = step(torch.randn(count, 5), torch.randn(count, 2))
        after()
        yield f"step {number}, loss", loss.clone()
        yield f"step {number}, weights", [p.detach().clone() for p in net.parameters()]


def optimizers() -> Iterator[Case]:
    def lion(weights: Any) -> Any:
        from lion_pytorch import Lion

        return Lion(weights, lr=1e-2, weight_decay=1e-2)

    def schedule_free(weights: Any) -> Any:
        from schedulefree import AdamWScheduleFree

        optimizer = AdamWScheduleFree(weights, lr=1e-2, warmup_steps=2)
        optimizer.train()
        return optimizer

    def schedule_free_sgd(weights: Any) -> Any:
        from schedulefree import SGDScheduleFree

        optimizer = SGDScheduleFree(weights, lr=1e-1)
        optimizer.train()
        return optimizer

    def of(name: str, **options: Any) -> Any:
        def make(weights: Any) -> Any:
            import torch_optimizer

            return getattr(torch_optimizer, name)(weights, lr=1e-2, **options)

        return make

    def riemannian(weights: Any) -> Any:
        import geoopt

        return geoopt.optim.RiemannianAdam(weights, lr=1e-2)

    for name, make in {
        "lion_pytorch.lion": lion,
        "schedulefree.adamw": schedule_free,
        "schedulefree.sgd": schedule_free_sgd,
        "torch_optimizer.lamb": of("Lamb"),
        "torch_optimizer.novograd": of("NovoGrad"),
        "torch_optimizer.diffgrad": of("DiffGrad"),
        "torch_optimizer.lookahead": None,
        "geoopt.adam": riemannian,
    }.items():

        def run(compile_: Compile, make: Any = make, whole: bool = False) -> Any:
            net = _net()
            if make is None:
                import torch_optimizer

                inner = torch_optimizer.RAdam(net.parameters(), lr=1e-2)
                return _train(compile_, net, torch_optimizer.Lookahead(inner, k=2), whole)
            return _train(compile_, net, make(net.parameters()), whole)

        yield program(f"{name}.net", run)
        yield program(f"{name}.step", lambda compile_, run=run: run(compile_, whole=True))


def averages() -> Iterator[Case]:
    def ema_pytorch(compile_: Compile) -> Any:
        from ema_pytorch import EMA

        net = _net()
        average = EMA(net, beta=0.9, update_after_step=1, update_every=1)
        update = compile_(average.update)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        yield from _train(as_given, net, optimizer, after=update)
        yield "average", [p.detach().clone() for p in average.ema_model.parameters()]

    def torch_ema(compile_: Compile) -> Any:
        from torch_ema import ExponentialMovingAverage

        net = _net()
        average = ExponentialMovingAverage(net.parameters(), decay=0.9)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        yield from _train(compile_, net, optimizer, after=average.update)
        called = compile_(net)
        with average.average_parameters():
            yield "average", called(torch.ones(2, 5)).detach().clone()
        yield "weights", called(torch.ones(2, 5)).detach().clone()

    def as_given(function: Any) -> Any:
        return function

    yield program("ema_pytorch.update", ema_pytorch)
    yield program("torch_ema.average", torch_ema)


def loops() -> Iterator[Case]:
    def lightning(whole: bool, compile_: Compile) -> Any:
        import lightning

        class Task(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = _net() if whole else compile_(_net())
                self.losses: list[torch.Tensor] = []

            def training_step(self, batch: Any, number: int) -> torch.Tensor:
                x, y = batch
                loss = torch.nn.functional.mse_loss(self.net(x), y)
                self.losses.append(loss.detach().clone())
                return loss

            def configure_optimizers(self) -> Any:
                return torch.optim.Adam(self.parameters(), lr=1e-2)

        task = Task()
        if whole:
            task.training_step = compile_(task.training_step)
        rows = torch.utils.data.TensorDataset(torch.randn(14, 5), torch.randn(14, 2))
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(task, torch.utils.data.DataLoader(rows, batch_size=4))
        yield "losses", task.losses
        yield "weights", [p.detach().clone() for p in task.parameters()]

    def fabric(compile_: Compile) -> Any:
        import lightning

        lightning.fabric.utilities.seed.seed_everything(4)
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        net = compile_(_net())
        net, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for number in range(STEPS):
            optimizer.zero_grad()
            loss = net(torch.randn(6, 5)).square().mean()
            fabric.backward(loss)
            optimizer.step()
            yield f"step {number}", loss.detach().clone()

    def accelerate(compile_: Compile) -> Any:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = _net()
        net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2))

        def loss_of(x: torch.Tensor) -> torch.Tensor:
            return net(x).square().mean()

        loss_of = compile_(loss_of)
        for number in range(STEPS):
            with accelerator.accumulate(net):
                loss = loss_of(torch.randn(6 if number < 3 else 4, 5))
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            yield f"step {number}", loss.detach().clone()
        yield "weights", [p.detach().clone() for p in net.parameters()]

    def skorch(compile_: Compile) -> Any:
        from skorch import NeuralNetRegressor

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = _net()

            def forward(self, X: torch.Tensor) -> torch.Tensor:
                return self.net(X)

        made = Net()
        called = compile_(made)
        net = NeuralNetRegressor(
            called, max_epochs=2, lr=0.05, batch_size=8, verbose=0, device="cpu"
        )
        x, y = torch.randn(20, 5), torch.randn(20, 2)
        net.fit(x, y)
        yield "predictions", torch.from_numpy(net.predict(x))

    yield program("lightning.net", lambda compile_: lightning(False, compile_))
    yield program("lightning.training_step", lambda compile_: lightning(True, compile_))
    yield program("lightning.fabric", fabric)
    yield program("accelerate.loss", accelerate)
    yield program("skorch.regressor", skorch)


def peft() -> Iterator[Case]:
    def adapted(make_config: Callable[[Any], Any]) -> Any:
        def make() -> Any:
            import peft
            from transformers import GPT2Config, GPT2LMHeadModel

            config = GPT2Config(
                vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                embd_pdrop=0.0, attn_pdrop=0.0,
            )  # fmt: skip
            model = peft.get_peft_model(GPT2LMHeadModel(config), make_config(peft))

            class Logits(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.model = model

                def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                    return self.model(input_ids=tokens, use_cache=False).logits

            return Logits()

        return make

    target = {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"]}
    for name, config in {
        "lora": lambda p: p.LoraConfig(r=2, init_lora_weights=False, **target),
        "dora": lambda p: p.LoraConfig(r=2, use_dora=True, init_lora_weights=False, **target),
        "ia3": lambda p: p.IA3Config(feedforward_modules=[], init_ia3_weights=False, **target),
        "prompt": lambda p: p.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3),
    }.items():
        tokens = (integers(50, 2, 8), integers(50, 2, 8), integers(50, 1, 6))
        yield from both(f"peft.{name}", adapted(config), *tokens)

    def merged() -> Any:
        made = adapted(lambda p: p.LoraConfig(r=2, init_lora_weights=False, **target))()
        made.model = made.model.merge_and_unload()
        return made

    yield train_case("peft.merged", merged, integers(50, 2, 8), integers(50, 2, 8))


def cases() -> Iterator[Case]:
    yield from optimizers()
    yield from averages()
    yield from loops()
    yield from peft()
