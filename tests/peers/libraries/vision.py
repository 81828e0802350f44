"""Images and volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from peers.libraries.common import Inputs, both, eval_case, normal, together, train_case, uniform
from peers.torch_suites import Case


def _images(channels: int = 3) -> tuple[Inputs, ...]:
    return (
        uniform(2, channels, 12, 10, grad=True),
        uniform(2, channels, 12, 10, grad=True),
        uniform(1, channels, 9, 14, grad=True),
    )


def kornia() -> Iterator[Case]:
    def function(path: str, *args: Any, **options: Any) -> Any:
        def make() -> Any:
            import kornia

            found = kornia
            for part in path.split("."):
                found = getattr(found, part)
            return lambda x: found(x, *args, **options)

        return make

    for name, make in {
        "gaussian_blur": function("filters.gaussian_blur2d", (3, 3), (1.5, 1.5)),
        "sobel": function("filters.sobel"),
        "laplacian": function("filters.laplacian", 3),
        "median_blur": function("filters.median_blur", (3, 3)),
        "unsharp": function("filters.unsharp_mask", (3, 3), (1.5, 1.5)),
        "canny": function("filters.canny"),
        "bilateral": function("filters.bilateral_blur", (3, 3), 0.1, (1.5, 1.5)),
        "rgb_to_hsv": function("color.rgb_to_hsv"),
        "rgb_to_lab": function("color.rgb_to_lab"),
        "rgb_to_grayscale": function("color.rgb_to_grayscale"),
        "equalize": function("enhance.equalize"),
        "adjust_hue": function("enhance.adjust_hue", 0.3),
        "harris": function("feature.harris_response"),
        "pyramid": function("geometry.transform.build_pyramid", 2),
        "rotate": function("geometry.rotate", torch.tensor([30.0])),
        "resize": function("geometry.resize", (7, 9)),
    }.items():
        wrapped = name in ("canny", "equalize")  # not smooth
        yield (eval_case if wrapped else train_case)(f"kornia.{name}", make, *_images())

    def dilation() -> Any:
        import kornia

        kernel = torch.ones(3, 3)
        return lambda x: kornia.morphology.opening(x, kernel)

    def warp() -> Any:
        import kornia

        matrix = torch.tensor([[[0.9, 0.1, 0.5], [-0.1, 1.0, 0.2], [0.001, 0.0, 1.0]]])

        def warped(x: torch.Tensor) -> torch.Tensor:
            return kornia.geometry.warp_perspective(x, matrix.expand(len(x), 3, 3), (8, 8))

        return warped

    def loss() -> Any:
        import kornia

        return lambda a, b: kornia.losses.ssim_loss(a, b, 5) + kornia.losses.psnr_loss(a, b, 1.0)

    def augmentation() -> Any:
        import kornia.augmentation as augmentation

        return augmentation.AugmentationSequential(
            augmentation.RandomHorizontalFlip(p=0.5),
            augmentation.ColorJitter(0.1, 0.1, 0.1, 0.1, p=1.0),
            augmentation.RandomAffine(20.0, p=1.0),
        )

    def points() -> Any:
        import kornia.geometry.conversions as conversions

        return conversions.axis_angle_to_rotation_matrix

    def vit() -> Any:
        from kornia.models.vit import VisionTransformer

        return VisionTransformer(
            image_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, dropout_rate=0.0
        )

    yield train_case("kornia.opening", dilation, *_images())
    yield train_case("kornia.warp", warp, *_images())
    pairs = tuple(together(give, give) for give in _images())
    yield train_case("kornia.losses", loss, *pairs)
    yield eval_case("kornia.augmentation", augmentation, *_images())
    yield train_case(
        "kornia.rotations",
        points,
        normal(4, 3, grad=True),
        normal(4, 3, grad=True),
        normal(2, 3, grad=True),
    )
    yield from both("kornia.vit", vit, normal(2, 3, 8, 8), normal(2, 3, 8, 8), normal(1, 3, 8, 8))


def monai() -> Iterator[Case]:
    def net(name: str, **options: Any) -> Any:
        def make() -> Any:
            import monai.networks.nets as nets

            return getattr(nets, name)(**options)

        return make

    def loss(name: str, **options: Any) -> Any:
        def make() -> Any:
            import monai.losses as losses

            return getattr(losses, name)(**options)

        return make

    small = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
    volumes = (normal(2, 1, 16, 16), normal(2, 1, 16, 16), normal(1, 1, 32, 16))
    for name, make in {
        "unet": net("UNet", **small, channels=(4, 8), strides=(2,), num_res_units=1),
        "regunet": net("RegUNet", **small, num_channel_initial=4, depth=1),
        "segresnet": net("SegResNet", **small, init_filters=8, blocks_down=(1, 1), blocks_up=(1,)),
        "attention_unet": net("AttentionUnet", **small, channels=(4, 8), strides=(2,)),
        "dynunet": net(
            "DynUNet", **small, kernel_size=(3, 3, 3), strides=(1, 2, 2),
            upsample_kernel_size=(2, 2), filters=(4, 8, 8),
        ),
        "highresnet": net("HighResNet", **small),
    }.items():  # fmt: skip
        yield from both(f"monai.{name}", make, *volumes)
    square = (normal(2, 1, 16, 16), normal(2, 1, 16, 16), normal(1, 1, 16, 16))
    yield from both(
        "monai.vit",
        net(
            "ViT", in_channels=1, img_size=(16, 16), patch_size=(8, 8), hidden_size=16, mlp_dim=32,
            num_layers=1, num_heads=2, spatial_dims=2,
        ),
        *square,
    )  # fmt: skip
    yield from both(
        "monai.unetr",
        net(
            "UNETR", **small, img_size=(16, 16), feature_size=4, hidden_size=16, mlp_dim=32,
            num_heads=2,
        ),
        *square,
    )  # fmt: skip
    wide = (normal(1, 1, 64, 64), normal(1, 1, 64, 64))
    yield eval_case(
        "monai.swin_unetr.eval",
        net("SwinUNETR", **small, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)),
        *wide,
    )
    yield from both(
        "monai.densenet",
        net("DenseNet", **small, init_features=8, growth_rate=4, block_config=(2, 2), bn_size=2),
        *volumes,
    )

    def masked(*shape: int) -> Inputs:
        return lambda: (torch.randn(*shape, requires_grad=True), (torch.rand(*shape) > 0.5).float())

    masks = (masked(2, 1, 8, 8), masked(2, 1, 8, 8), masked(1, 1, 6, 9))
    for name in ("DiceLoss", "TverskyLoss", "DiceFocalLoss"):
        yield train_case(f"monai.{name}", loss(name, sigmoid=True), *masks)
    yield train_case("monai.FocalLoss", loss("FocalLoss"), *masks)

    def sliding() -> Any:
        from monai.inferers import SlidingWindowInferer

        net = torch.nn.Conv2d(1, 2, 3, padding=1)
        inferer = SlidingWindowInferer(roi_size=(8, 8), sw_batch_size=2, overlap=0.25)
        return lambda x: inferer(x, net)

    yield eval_case("monai.sliding_window", sliding, *volumes)


def pytorch_msssim() -> Iterator[Case]:
    def single() -> Any:
        import pytorch_msssim

        return lambda a, b: pytorch_msssim.ssim(a, b, data_range=1.0, win_size=5)

    def multiple() -> Any:
        import pytorch_msssim

        return pytorch_msssim.MS_SSIM(data_range=1.0, channel=3, win_size=3)

    def pair(*shape: int) -> Inputs:
        return together(uniform(*shape, grad=True), uniform(*shape))

    yield train_case(
        "pytorch_msssim.ssim", single, pair(2, 3, 12, 12), pair(2, 3, 12, 12), pair(1, 3, 9, 16)
    )
    yield train_case(
        "pytorch_msssim.ms_ssim",
        multiple,
        pair(2, 3, 48, 48),
        pair(2, 3, 48, 48),
        pair(1, 3, 40, 56),
    )


def wavelets() -> Iterator[Case]:
    def plane(mode: str) -> Any:
        def make() -> Any:
            import ptwt

            def there_and_back(x: torch.Tensor) -> Any:
                parts = ptwt.wavedec2(x, "db2", level=2, mode=mode)
                low, rest = parts[0], parts[1:]
                return low, [list(part) for part in rest], ptwt.waverec2(parts, "db2")

            return there_and_back

        return make

    def line() -> Any:
        import ptwt

        return lambda x: ptwt.wavedec(x, "haar", level=3)

    for mode in ("zero", "reflect"):
        yield from both(
            f"ptwt.{mode}",
            plane(mode),
            normal(2, 16, 16, grad=True),
            normal(2, 16, 16, grad=True),
            normal(1, 20, 12, grad=True),
        )
    yield from both(
        "ptwt.line",
        line,
        normal(2, 32, grad=True),
        normal(2, 32, grad=True),
        normal(3, 24, grad=True),
    )


def cases() -> Iterator[Case]:
    yield from kornia()
    yield from monai()
    yield from pytorch_msssim()
    yield from wavelets()
