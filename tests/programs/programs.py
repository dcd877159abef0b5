"""Programs with real packages. They download nothing, and write the hash of their weights.

    python programs.py NAME FILE [coded]

Those with that word ask for the energy in their code or configuration; the others know nothing of it. `endless` steps
until the file is there, and raises then; it makes `steps` after 200.
"""

import hashlib
import itertools
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch


def define_missing_operators():
    """A torchvision that was built for CUDA lacks its operators beside a torch without it; none is called here."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def sentence_transformers():
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import CosineSimilarityLoss
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [f"word{number}" for number in range(20)]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(["?", *words])}, "?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    pairs = {"a": words * 4, "b": words[::-1] * 4, "score": [0.5] * 80}
    options = {"max_steps": 40, "per_device_train_batch_size": 8, "logging_steps": 10, "use_cpu": True}
    arguments = SentenceTransformerTrainingArguments("output", report_to="none", save_strategy="no", **options)
    trainer = SentenceTransformerTrainer(model, arguments, Dataset.from_dict(pairs), loss=CosineSimilarityLoss(model))
    trainer.train()
    return model


def timm():
    import timm
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    model = timm.create_model("resnet10t", num_classes=3)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=0.01)
    scheduler = CosineLRScheduler(optimizer, t_initial=40)
    for step in range(40):
        loss = model(torch.randn(2, 3, 32, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step_update(step)
    return model


def neuralforecast():
    from neuralforecast import NeuralForecast
    from neuralforecast.models import MLP
    from utilsforecast.data import generate_series

    options = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False, "accelerator": "cpu"}
    model = MLP(h=2, input_size=4, max_steps=40, val_check_steps=10, **options)
    forecast = NeuralForecast([model], freq="D")
    forecast.fit(generate_series(4, min_length=30))
    return forecast.models[0]


def ultralytics():
    import cv2
    import numpy as np
    from ultralytics import YOLO
    from ultralytics.utils.nms import TorchNMS

    if "coded" in sys.argv:
        from zeus_core.pytorch import follow_ultralytics

        follow_ultralytics()
    # A stand-in for what is used of torchvision.
    sys.modules["torchvision"] = SimpleNamespace(ops=SimpleNamespace(nms=TorchNMS.nms))
    for part in ("train", "val"):
        for folder in ("images", "labels"):
            Path(folder, part).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            picture = np.full((64, 64, 3), 40 * number, np.uint8)
            cv2.rectangle(picture, (16, 16), (48, 48), (255, 255, 255), -1)
            cv2.imwrite(f"images/{part}/{number}.png", picture)
            Path(f"labels/{part}/{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    Path("data.yaml").write_text(f"path: {Path.cwd()}\ntrain: images/train\nval: images/val\nnames: [square]\n")
    model = YOLO("yolov8n.yaml", verbose=False)
    options = {"imgsz": 64, "batch": 2, "nbs": 2, "device": "cpu", "workers": 0, "plots": False, "project": "runs"}
    model.train(data="data.yaml", epochs=3, seed=0, exist_ok=True, verbose=False, **options)
    return model.model


def fabric():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    module = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
    for _ in range(40):
        fabric.backward(model(torch.randn(2, 4)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return module


def torchtune():
    from omegaconf import OmegaConf
    from torchtune import config
    from torchtune.models.llama3 import llama3

    logger = {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "logs"}
    if "coded" in sys.argv:
        logger = {"_component_": "zeus_core.pytorch.TorchtuneLogger", "logger": logger}
    logger = config.instantiate(OmegaConf.create(logger))
    model = llama3(vocab_size=32, num_layers=1, num_heads=2, num_kv_heads=2, embed_dim=16, max_seq_len=16)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(40):
        model(torch.randint(32, (2, 8))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        logger.log_dict({"loss": 1.0}, step=step)
    logger.close()
    return model


def endless():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for step in itertools.count():
        if step == 200:
            Path("steps").touch()
        if Path(sys.argv[2]).exists():
            raise ValueError("of the user")
        model(torch.randn(2, 4)).mean().backward()
        optimizer.step()
        time.sleep(0.02)


if __name__ == "__main__":
    torch.manual_seed(0)
    operators = define_missing_operators()
    weights = b"".join(value.numpy().tobytes() for value in globals()[sys.argv[1]]().state_dict().values())
    Path(sys.argv[2]).write_text(hashlib.sha256(weights).hexdigest())
