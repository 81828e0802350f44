"""Architectures of transformers, small and from their configurations, with random weights."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from peers.libraries.common import Compile, program
from peers.torch_suites import Case, clone

# Those that run as they are with the sizes and inputs below.
TYPES = (Path(__file__).parent / "transformer_types.txt").read_text().split()

# The largest value of a setting, by its names in the architectures.
SIZES = {
    32: """hidden_size d_model n_embd embed_dim dim hidden_dim embedding_size emb_dim image_size
        decoder_hidden_size encoder_hidden_dim""",
    2: """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth
        num_encoder_layers num_decoder_layers decoder_num_hidden_layers num_key_value_heads
        num_kv_heads num_experts_per_tok moe_top_k moe_k""",
    4: """num_attention_heads n_head n_heads num_heads encoder_attention_heads num_experts
        decoder_attention_heads decoder_num_attention_heads num_decoder_attention_heads
        num_encoder_attention_heads num_local_experts n_routed_experts moe_num_experts""",
    8: "head_dim kv_channels d_kv patch_size qk_nope_head_dim qk_rope_head_dim v_head_dim",
    16: "num_mel_bins q_lora_rank kv_lora_rank",
    48: """intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim mlp_dim
        decoder_intermediate_size ffn_hidden_size moe_intermediate_size""",
    64: "max_position_embeddings n_positions max_source_positions max_target_positions",
    99: "vocab_size",
}
LARGEST = {name: size for size, names in SIZES.items() for name in names.split()}
STEPS = ((2, 12), (2, 12), (3, 9))  # sequences and tokens of each call


def _parts(config: Any) -> list[Any]:
    from transformers import PreTrainedConfig

    return [part for part in vars(config).values() if isinstance(part, PreTrainedConfig)]


def _shrink(config: Any) -> Any:
    for part in _parts(config):
        _shrink(part)
    for name, value in list(vars(config).items()):
        if isinstance(value, int) and not isinstance(value, bool):
            if value > LARGEST.get(name, value):
                setattr(config, name, LARGEST[name])
            elif name.endswith("_token_id") and value >= LARGEST["vocab_size"]:
                setattr(config, name, 1 if "pad" in name else 5)
        elif name in ("layer_types", "mlp_layer_types") and value and len(value) > 2:
            setattr(config, name, [*dict.fromkeys(value), *value][:2])
    return config


def _setting(config: Any, *names: str, default: int) -> int:
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value[0] if isinstance(value, (list, tuple)) else value
    found = [_setting(part, *names, default=-1) for part in _parts(config)]
    return next((value for value in found if value != -1), default)


def _build(kind: str) -> Any:
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    config = _shrink(CONFIG_MAPPING[kind]())
    classes = MODEL_MAPPING[type(config)]
    return (classes[0] if isinstance(classes, tuple) else classes)(config)


def _inputs(model: Any, step: int) -> dict[str, torch.Tensor]:
    """By name: the main input, and those that have no default."""
    batch, length = STEPS[step]
    config = model.config
    accepted = inspect.signature(model.forward).parameters
    tokens = min(_setting(config, "vocab_size", default=99), 90)
    side = _setting(config, "image_size", "crop_size", default=32)
    frames = _setting(config, "num_frames", "frames_per_clip", default=4)
    bins = _setting(config, "num_mel_bins", "feature_size", "input_dim", default=16)
    makers = {
        "input_ids": lambda: torch.randint(6, tokens, (batch, length)),
        "decoder_input_ids": lambda: torch.randint(6, tokens, (batch, length)),
        "pixel_values": lambda: torch.randn(
            batch, _setting(config, "num_channels", default=3), side, side
        ),
        "pixel_values_videos": lambda: torch.randn(batch, frames, 3, side, side),
        "input_values": lambda: torch.randn(batch, 4000),
        "input_features": lambda: torch.randn(batch, bins, 128),
        "bbox": lambda: torch.tensor([1, 2, 3, 4]).repeat(batch, length, 1),
    }
    wanted = [model.main_input_name] + [
        name
        for name, parameter in accepted.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    if "decoder_input_ids" in accepted and config.is_encoder_decoder:
        wanted.append("decoder_input_ids")
    given = {name: makers[name]() for name in dict.fromkeys(wanted)}
    if "attention_mask" in accepted and "input_ids" in given:
        given["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        given["attention_mask"][0, length - 3 * step :] = 0
    return given


def _tensors(result: Any) -> list[torch.Tensor]:
    """Of an output, without caches."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for one in result for tensor in _tensors(one)]
    return []


def _calls(compile_function: Compile, kind: str, training: bool) -> Iterator[tuple[str, Any]]:
    torch.manual_seed(1)
    model = _build(kind).train(training)
    called = compile_function(model)
    for step in range(len(STEPS)):
        torch.manual_seed(10 + step)
        given = _inputs(model, step)
        with torch.set_grad_enabled(training):
            results = _tensors(called(**given))
        yield f"call {step}, result", clone(results)
        yield f"call {step}, strides", [tensor.stride() for tensor in results]
        if training:
            model.zero_grad()
            sum(t.float().sin().mean() for t in results if t.requires_grad).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            yield f"call {step}, gradients", clone(gradients)
    yield "buffers", clone(list(model.buffers()))


def cases() -> Iterator[Case]:
    for kind in TYPES:
        for mode, training in (("eval", False), ("train", True)):
            yield program(
                f"transformers.{kind}.{mode}",
                lambda compile_, kind=kind, training=training: _calls(compile_, kind, training),
            )
