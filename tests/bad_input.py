"""Mistakes that people make, each a command line: what it says must be one line about what to type."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

CONFIGS = ("--config-dir", "configs")
TABLE = ("dataset=table", "dataset.target=label", "dataset.task=classification")
NPY = (
    "dataset=npy",
    "dataset.task=classification",
    "dataset.inputs=inputs.npy",
    "dataset.targets=targets.npy",
)


@dataclass(frozen=True)
class Bad:
    """`says` is how the line begins, `ends` how it ends."""

    name: str
    arguments: tuple[str, ...]
    says: str
    ends: str = ""


CASES = (
    Bad("unknown key", ("trainer.epoch=3",), "trainer.epoch: no such key; trainer has ", "; type trainer.epochs=3"),
    Bad("unknown group", ("modle=mlp",), "modle: no such key; the config has ", "; type model=mlp"),
    Bad("unknown option", ("model=mpl",), "model=mpl: no such option; conf/model has cnn", "; type model=mlp"),
    Bad("added and misspelt", ("+trainer.epoch=3",), "trainer.epoch: no such key in trainer, ", "did you mean trainer.epochs?"),
    Bad("added at the top", ("+foo=1",), "foo: no such key in the config, which has model"),
    Bad("added, but there", ("+model.hidden=128",), "+model.hidden=128: model.hidden is there already; type model.hidden=…"),
    Bad("no value", ("trainer.epochs=",), "trainer.epochs=: must be a whole number", "; type trainer.epochs=1"),
    Bad("missing value", ("trainer.epochs=???",), "trainer.epochs: has no value; type trainer.epochs=…"),
    Bad("wrong type", ("trainer.epochs=many",), "trainer.epochs=many: must be a whole number; type trainer.epochs=1"),
    Bad("dict for a number", ("trainer.epochs={a:1}",), "trainer.epochs={a:1}: must be a whole number"),
    Bad("list for a group", ("model=[1,2]",), "model=[1,2]: a group takes the name of an option; type model="),
    Bad("no quote", ("tracking.run_name='a",), "tracking.run_name='a: not an override; type key=value"),
    Bad("misspelt verb", ("trian",), "trian: no such verb; ", "; type train"),
    Bad("unknown flag", ("seed=1", "--nope"), "unrecognized arguments: --nope; type python -m runner --help"),
    Bad("folder of configs", ("--config-dir", "nowhere", "seed=1"), "Additional config directory '"),
    *(
        Bad(f"lr {lr}", (f"optimizer.lr={lr}",), f"optimizer.lr={float(lr)}: must be a finite number above 0", "lr=0.1")
        for lr in ("-1", "0", "nan", "inf")
    ),
    Bad("batch 0", ("trainer.batch_size=0",), "trainer.batch_size=0: must be 1 or more; type trainer.batch_size=1"),
    Bad("no worker", ("scaling.num_workers=0",), "scaling.num_workers=0: must be 1 or more; type "),
    Bad("too many workers", ("scaling.num_workers=640",), "scaling.num_workers=640: 640 workers × ", ),
    Bad("no GPU", ("scaling.num_workers=1", "scaling.resources_per_worker.GPU=64"), "scaling.num_workers=1: 1 worker × 64 GPU need 64 GPUs, "),
    Bad("duplicate YAML key", (*CONFIGS, "model=twice"), "{here}/configs/model/twice.yaml:2: no valid YAML (found duplicate key _target_)"),
    Bad("tab in YAML", (*CONFIGS, "model=tab"), "{here}/configs/model/tab.yaml:2: no valid YAML (found character '\\t'", "; indent with spaces"),
    Bad("empty YAML", (*CONFIGS, "model=empty"), "model._target_=???: a dotted path is needed; type model="),
    Bad("list in YAML", (*CONFIGS, "model=list"), "model/list.yaml must hold keys and values, not a list"),
    Bad("broken interpolation", (*CONFIGS, "model=broken"), "model.hidden: refers to nothing.here, which is no key of the config"),
    Bad("circular interpolation", (*CONFIGS, "model=circular"), "model.in_features: refers to itself"),
    Bad("unset environment variable", (*CONFIGS, "model=unset"), "model.in_features: the environment variable RUNNER_NOT_SET is not set; type export RUNNER_NOT_SET=…"),
    Bad("misspelt _target_", ("model._target_=models.mlp.MLPP",), "model._target_=models.mlp.MLPP: models.mlp has no MLPP; type model._target_=models.mlp.MLP"),
    Bad("forbidden _target_", ("model._target_=os.system",), "model._target_=os.system: is of Python's standard library; a config may name your own code, and torch.nn"),
    Bad("not allowed _target_", ("model._target_=mlflow.start_run",), "model._target_=mlflow.start_run: is of an installed package; ", "; type allowed_targets=[mlflow]"),
    Bad("wrong argument", ("+model.hiden=[8]",), "model.hiden=[8]: models.mlp.MLP takes in_features, out_features, hidden, dropout; type model.hidden=[8]"),
    Bad("wrong kind of argument", ("model.hidden=128",), "model=models.mlp.MLP: TypeError: 'int' object is not iterable ("),
    Bad("data path", (*TABLE, "dataset.path=rows.cvs"), "dataset: datasets.table.read failed with ValueError: {here}/rows.cvs: no such file; did you mean rows.csv?"),
    Bad("empty file", (*TABLE, "dataset.path=empty.csv"), "dataset: datasets.table.read failed with ValueError: {here}/empty.csv: is empty"),
    Bad("ragged rows", (*TABLE, "dataset.path=ragged.csv"), "dataset: datasets.table.read failed with ValueError: {here}/ragged.csv: row 8: "),
    Bad("more workers than rows", (*TABLE, "dataset.path=few.csv", "scaling.num_workers=2"), "scaling.num_workers=2: more workers than the 1 training rows; type scaling.num_workers=1"),
    Bad("NaN in a row", (*NPY, "dataset.inputs=nan.npy"), "dataset: "),
    Bad("label out of range", (*NPY, "dataset.targets=negative.npy"), "dataset: "),
    Bad("rows of two lengths", (*NPY, "dataset.targets=short.npy"), "dataset: "),
    Bad("inputs that do not fit", ("model.in_features=7",), "model=models.mlp.MLP: a batch with inputs (32, 1, 8, 8) and targets (32,) failed with RuntimeError: ", "; type model.in_features=null (the data and the plan know it)"),
    Bad("outputs that do not fit", ("model.out_features=3",), "model=models.mlp.MLP: a batch with inputs (32, 1, 8, 8) and targets (32,) failed with IndexError: ", "; type model.out_features=null (the data and the plan know it)"),
    Bad("images wanted", ("model=cnn", "dataset=breast_cancer"), "model=models.cnn.CNN: ValueError: input_shape=[30] must be [channels, height, width]; rows that are no images take model=mlp"),
    Bad("no weights there", ("model.init_from=nowhere",), "model.init_from={here}/nowhere: a checkpoint folder, a .safetensors file or runs:/<run_id> is needed"),
    Bad("weights that are text", ("model.init_from=rows.csv",), "model.init_from={here}/rows.csv: a checkpoint folder, a .safetensors file or runs:/<run_id> is needed"),
    Bad("folder that cannot be", ("hydra.run.dir=/proc/x",), "hydra.run.dir=/proc/x: cannot be made ("),
    Bad("run name", ("tracking.run_name=../x",), "tracking.run_name=../x: must be a name without / and ..; type "),
    Bad("plain folder for MLflow", ("tracking.uri=./mlruns",), "tracking.uri=./mlruns: MLflow no longer writes to plain folders; type tracking.uri=sqlite:///mlflow.db"),
    Bad("MLflow not there", ("tracking.uri=http://127.0.0.1:9",), "tracking.uri=http://127.0.0.1:9: nothing answers there (Connection refused); start the server, or type tracking=none"),
    Bad("Ray not there", ("scaling.address=127.0.0.1:9",), "scaling.address=127.0.0.1:9: nothing answers there (Connection refused); "),
    Bad("Adasum on Gloo", ("lr_scaling=adasum",), "lr_scaling=adasum: Adasum needs a Horovod with MPI, this one uses Gloo or NCCL; type lr_scaling=sqrt"),
    Bad("bfloat16 weights on Gloo", (*CONFIGS, "model=narrow"), "model=narrow_net.Narrow: weight is bfloat16, which Gloo cannot average on CPUs; type trainer.precision=bf16"),
    Bad("SyncBatchNorm", (*CONFIGS, "model=synchronised"), "model=torch.nn.SyncBatchNorm: "),
    Bad("one job of a multirun", ("--multirun", "optimizer.lr=0.1,-1"), "job 1 (optimizer.lr=-1): optimizer.lr=-1.0: must be a finite number above 0; type optimizer.lr=0.1"),
    Bad("an override's typo in a multirun", ("--multirun", "model=mlp,mpl"), "model=mpl: no such option; ", "; type model=mlp"),
)  # fmt: skip


def write_files(here: Path) -> None:
    """What the cases refer to."""
    files = {
        "configs/model/twice.yaml": "_target_: models.mlp.MLP\n_target_: models.cnn.CNN\n",
        "configs/model/tab.yaml": "_target_: models.mlp.MLP\n\thidden: [3]\n",
        "configs/model/empty.yaml": "",
        "configs/model/list.yaml": "- 1\n- 2\n",
        "configs/model/broken.yaml": "_target_: models.mlp.MLP\nin_features: null\nout_features: null\nhidden: ${nothing.here}\n",
        "configs/model/circular.yaml": "_target_: models.mlp.MLP\nin_features: ${model.out_features}\nout_features: ${model.in_features}\n",
        "configs/model/unset.yaml": "_target_: models.mlp.MLP\nin_features: ${oc.env:RUNNER_NOT_SET}\nout_features: null\n",
        "configs/model/synchronised.yaml": "_target_: torch.nn.SyncBatchNorm\nnum_features: 1\n",
        "configs/model/narrow.yaml": "_target_: narrow_net.Narrow\n",
        "narrow_net.py": "import torch\nclass Narrow(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(64, 10, dtype=torch.bfloat16)\n",
        "empty.csv": "",
        "few.csv": "a,b,label\n1,2,0\n3,4,1\n",
        "rows.csv": "a,b,label\n" + "".join(f"{row},{row * 2},{row % 2}\n" for row in range(40)),
        "ragged.csv": "a,b,label\n" + "".join(f"{row},0,{row % 2}{',9' * (row == 7)}\n" for row in range(40)),
    }
    for name, text in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    inputs, targets = np.ones((40, 8), np.float32), np.arange(40) % 4
    np.save(here / "inputs.npy", inputs)
    np.save(here / "targets.npy", targets)
    np.save(here / "short.npy", targets[:30])
    inputs[7, 3] = np.nan
    targets[9] = -1
    np.save(here / "nan.npy", inputs)
    np.save(here / "negative.npy", targets)
