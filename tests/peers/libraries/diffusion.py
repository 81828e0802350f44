"""Networks and schedules of diffusion models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Compile, both, eval_case, normal, program, together
from peers.torch_suites import Case


class Sample(torch.nn.Module):
    """A model that answers with its tensor alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> torch.Tensor:
        return self.model(*args).sample


def networks() -> Iterator[Case]:
    def unet() -> Any:
        from diffusers import UNet2DModel

        return Sample(
            UNet2DModel(
                sample_size=8, in_channels=3, out_channels=3, layers_per_block=1,
                block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            )
        )  # fmt: skip

    def conditional() -> Any:
        from diffusers import UNet2DConditionModel

        return Sample(
            UNet2DConditionModel(
                sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
                block_out_channels=(8, 16), norm_num_groups=4, attention_head_dim=4,
                cross_attention_dim=12,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            )
        )  # fmt: skip

    def autoencoder() -> Any:
        from diffusers import AutoencoderKL

        return Sample(
            AutoencoderKL(
                block_out_channels=(8, 16), norm_num_groups=4, latent_channels=4,
                down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2,
            )
        )  # fmt: skip

    def quantized() -> Any:
        from diffusers import VQModel

        return Sample(
            VQModel(
                block_out_channels=(8,), norm_num_groups=4, latent_channels=4, num_vq_embeddings=16,
                down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",),
            )
        )  # fmt: skip

    def transformer() -> Any:
        from diffusers import DiTTransformer2DModel

        class Conditioned(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = DiTTransformer2DModel(
                    num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=1,
                    sample_size=8, patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10,
                )  # fmt: skip

            def forward(
                self, x: torch.Tensor, step: torch.Tensor, label: torch.Tensor
            ) -> torch.Tensor:
                return self.model(x, timestep=step, class_labels=label).sample

        return Conditioned()

    def prior() -> Any:
        from diffusers import Transformer2DModel

        return Sample(
            Transformer2DModel(
                num_attention_heads=2, attention_head_dim=4, in_channels=8, norm_num_groups=4,
                cross_attention_dim=12, num_layers=1,
            )
        )  # fmt: skip

    def steps(count: int) -> Any:
        return lambda: torch.randint(10, (count,))

    images = (
        together(normal(2, 3, 8, 8), steps(2)),
        together(normal(2, 3, 8, 8), steps(2)),
        together(normal(1, 3, 16, 8), steps(1)),
    )
    yield from both("diffusers.unet", unet, *images)
    texts = (
        together(normal(2, 4, 8, 8), steps(2), normal(2, 5, 12)),
        together(normal(2, 4, 8, 8), steps(2), normal(2, 5, 12)),
        together(normal(1, 4, 8, 8), steps(1), normal(1, 7, 12)),
    )
    yield from both("diffusers.conditional_unet", conditional, *texts)
    pictures = (normal(2, 3, 16, 16), normal(2, 3, 16, 16), normal(1, 3, 8, 16))
    yield from both("diffusers.autoencoder", autoencoder, *pictures)
    yield from both("diffusers.vector_quantized", quantized, *pictures)
    labelled = (
        together(normal(2, 4, 8, 8), steps(2), steps(2)),
        together(normal(2, 4, 8, 8), steps(2), steps(2)),
        together(normal(1, 4, 8, 8), steps(1), steps(1)),
    )
    yield from both("diffusers.transformer", transformer, *labelled)
    mixed = (
        together(normal(2, 8, 4, 4), normal(2, 5, 12)),
        together(normal(2, 8, 4, 4), normal(2, 5, 12)),
        together(normal(1, 8, 6, 4), normal(1, 3, 12)),
    )
    yield from both("diffusers.attention_over_images", prior, *mixed)


def schedules() -> Iterator[Case]:
    def denoise(name: str, compile_: Compile) -> Any:
        import diffusers

        schedule = getattr(diffusers, name)(num_train_timesteps=50)
        schedule.set_timesteps(4)
        net = torch.nn.Conv2d(3, 3, 3, padding=1)

        def step(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return schedule.step(net(schedule.scale_model_input(x, t)), t, x).prev_sample

        step = compile_(step)
        x = torch.randn(2, 3, 8, 8)
        for t in schedule.timesteps:
            torch.manual_seed(9)
            with torch.no_grad():
                x = step(x, t)
            yield f"step {t}", x.clone()

    def noise() -> Any:
        from diffusers import DDPMScheduler

        return DDPMScheduler(num_train_timesteps=50).add_noise

    for name in (
        "DDPMScheduler", "DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler",
        "PNDMScheduler", "HeunDiscreteScheduler", "UniPCMultistepScheduler",
    ):  # fmt: skip
        yield program(f"diffusers.{name}", lambda compile_, n=name: denoise(n, compile_))

    def drawn(count: int) -> Any:
        return together(
            normal(count, 3, 4, 4), normal(count, 3, 4, 4), lambda: torch.randint(50, (count,))
        )

    yield eval_case("diffusers.add_noise", noise, drawn(2), drawn(2), drawn(5))


def cases() -> Iterator[Case]:
    yield from networks()
    yield from schedules()
