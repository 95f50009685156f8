"""LightningModules as their authors write them, and classes that only look like one."""

import warnings

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, lr_scheduler

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Lightning's own, at its import
    from lightning.pytorch import LightningModule, Trainer  # noqa: F401
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

LR = 0.05

# What configure_optimizers may return, from the parameters and a LR that everything is proportional to.
FORMS = {
    "an optimizer": lambda p, lr: SGD(p, lr, momentum=0.9),
    "a list": lambda p, lr: [Adam(p, lr / 10)],
    "two lists, by epoch": lambda p, lr: (
        [o := SGD(p, lr, momentum=0.9)],
        [lr_scheduler.StepLR(o, step_size=1, gamma=0.5)],
    ),
    "two lists and a dict, by step": lambda p, lr: (
        [o := SGD(p, lr)],
        [{"scheduler": lr_scheduler.CosineAnnealingLR(o, 9, eta_min=lr / 20), "interval": "step"}],
    ),
    "a dict with a scheduler": lambda p, lr: {
        "optimizer": (o := SGD(p, lr)),
        "lr_scheduler": lr_scheduler.LambdaLR(o, lambda epoch: 1 / (1 + epoch)),
    },
    "a dict in a dict, one cycle": lambda p, lr: {
        "optimizer": (o := SGD(p, lr / 5, momentum=0.9)),
        "lr_scheduler": {
            "scheduler": lr_scheduler.OneCycleLR(o, lr, total_steps=10, pct_start=0.4),
            "interval": "step",
            "frequency": 1,
            "name": "lr",
        },
    },
    "a sequence of schedulers, two groups": lambda p, lr: {
        "optimizer": (o := SGD([{"params": p[:2]}, {"params": p[2:], "lr": lr / 3}], lr)),
        "lr_scheduler": {
            "scheduler": lr_scheduler.SequentialLR(
                o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 4), lr_scheduler.ExponentialLR(o, 0.8)], [4]
            ),
            "interval": "step",
        },
    },
}


def layers():
    """The same on every rank, whatever their threads draw."""
    draws = torch.Generator().manual_seed(1)
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws) / 8)
    return made


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = layers()

    def forward(self, images):
        return self.layers(images)


class Digits(LightningModule):
    """As in the tutorials."""

    def __init__(self, form="an optimizer", lr=LR):
        super().__init__()
        self.save_hyperparameters()
        self.layers = layers()
        self.f1 = MulticlassF1Score(10, average="macro")
        self.train_acc = MulticlassAccuracy(10, average="micro")

    def forward(self, images):
        return self.layers(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        loss = functional.cross_entropy(logits, labels)
        self.train_acc(logits, labels)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train/rows", float(len(labels)))
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        self.f1(logits, labels)
        self.log_dict(
            {"val_loss": functional.cross_entropy(logits, labels), "val/f1": self.f1}, sync_dist=True
        )
        self.log("val_acc", (logits.argmax(dim=1) == labels).double().mean(), prog_bar=True)

    def configure_optimizers(self):
        return FORMS[self.hparams.form](list(self.layers.parameters()), self.hparams.lr)


class Plateau(Digits):
    def configure_optimizers(self):
        optimizer = SGD(self.layers.parameters(), self.hparams.lr)
        scheduler = lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.1, patience=0, threshold=0.2, min_lr=0.02
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


class Duck(nn.Module):
    """Without Lightning."""

    def __init__(self):
        super().__init__()
        self.layers = layers()

    def training_step(self, batch):
        images, labels = batch
        return {"loss": functional.cross_entropy(self.layers(images), labels)}

    def configure_optimizers(self):
        return SGD(self.parameters(), LR, momentum=0.9)


def node(cls, **arguments):
    return {"_target_": f"{__name__}.{cls.__name__}", **arguments}


def nothing(*_):
    pass


def with_methods(base=Digits, **methods):
    return type("Mine", (base,), methods)()


class Told(nn.Module):
    """Logs what it is told to; the loss is the mean of the inputs."""

    def __init__(self, tell=nothing, returned=lambda loss: loss):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.tell, self.returned, self.seen = tell, returned, []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch_idx)
        self.tell(self, batch[0])
        return self.returned(self.weight * batch[0].mean())

    def validation_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx)

    def configure_optimizers(self):
        return SGD(self.parameters(), LR)
