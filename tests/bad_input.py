"""Mistakes that people make, each a command line: what it says must be one line about what to type."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet

from runner import checkpoint, config, run_folder
from runner.run_folder import RunFile
from tests.composed import compose

CONFIGS = ("--config-dir", "configs")
TABLE = ("dataset=table", "dataset.target=label", "dataset.task=classification")
NPY = (
    "dataset=npy",
    "dataset.task=classification",
    "dataset.inputs=inputs.npy",
    "dataset.targets=targets.npy",
)

DAMAGES = {  # of a checkpoint: the file and what is said of it
    "truncated": "state.pt: 1252 bytes, 1261 were written",
    "empty": "state.pt: 0 bytes, 1261 were written",
    "text": "state.pt: 16 bytes, 1261 were written",
    "flipped": "state.pt: not what was written, its sha256 is another",
    "pickle": "state.pt: 33 bytes, 1261 were written",
    "newer": "manifest.json: another version of runner wrote it (schema 4, this one reads 3)",
    "manifest": "manifest.json: not a readable manifest (",
}
IMAGES = ("dataset=images", "model=cnn")


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
    Bad("a key deleted", ("~allowed_targets",), "allowed_targets: cannot be deleted, only be given another value"),
    Bad("no key", ("+=[/,/]",), "+=[/,/]: not an override; type key=value, or python -m runner --help"),
    Bad("two mistakes", ("model=mpl", "+=1"), "+=1: not an override; type key=value, or python -m runner --help"),
    Bad("line break in a value", ("model=a\n\x1b[31mb",), "model=a \\x1b[31mb: not an override; type key=value, or python -m runner --help"),
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
    Bad("batch -1", ("trainer.batch_size=-1",), "trainer.batch_size=-1: must be 1 or more; type trainer.batch_size=1"),
    Bad("no number of MB", ("horovod.fusion_threshold_mb=nan",), "horovod.fusion_threshold_mb=nan: must be 0 or more; type horovod.fusion_threshold_mb=0"),
    Bad("no worker", ("scaling.num_workers=0",), "scaling.num_workers=0: must be 1 or more; type "),
    Bad("too many workers", ("scaling.num_workers=640",), "scaling.num_workers=640: 640 workers × ", ),
    Bad("one process for two workers", ("executor=local", "scaling.num_workers=2"), "scaling.num_workers=2: executor=local is one process; type scaling.num_workers=1"),
    Bad("Ray Data without Ray", ("executor=local", "scaling.num_workers=1", "dataset.ingest=ray_data"), "dataset.ingest=ray_data: executor=local starts no Ray; type executor=horovod_trainer"),
    Bad("a sweep without warm workers", ("--multirun", "executor=local", "scaling.num_workers=1", "seed=1,2"), "job 0 (executor=local scaling.num_workers=1 seed=1): executor=local: the warm workers of a sweep are those of horovod_trainer; type executor=horovod_trainer, or hydra/launcher=basic "),
    Bad("no GPU", ("scaling.num_workers=1", "scaling.resources_per_worker.GPU=64"), "scaling.num_workers=1: 1 worker × 64 GPU need 64 GPUs, "),
    Bad("duplicate YAML key", (*CONFIGS, "model=twice"), "{here}/configs/model/twice.yaml:2: no valid YAML (found duplicate key _target_)"),
    Bad("tab in YAML", (*CONFIGS, "model=tab"), "{here}/configs/model/tab.yaml:2: no valid YAML (found character '\\t'", "; indent with spaces"),
    Bad("bytes in YAML", (*CONFIGS, "model=bytes"), "model=bytes: its file is no valid YAML ("),
    Bad("YAML that holds itself", (*CONFIGS, "model=endless"), "model=endless: its file is no valid YAML "),
    Bad("open interpolation", (*CONFIGS, "model=open"), "model=open: its file is no valid YAML ("),
    Bad("list for a dict", ("scaling.resources_per_worker=[1]",), "scaling.resources_per_worker=[1]: must hold keys and values, not a list; type scaling.resources_per_worker.<name>=…"),
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
    Bad("data path", (*TABLE, "dataset.path=rows.cvs"), "dataset.path=rows.cvs: {here}/rows.cvs: no such file; did you mean rows.csv?"),
    Bad("file that cannot be read", (*TABLE, "dataset.path=unreadable.csv"), "dataset.path=unreadable.csv: {here}/unreadable.csv: cannot be read: "),
    Bad("link to nothing", (*TABLE, "dataset.path=dead.csv"), "dataset.path=dead.csv: {here}/dead.csv: no such file (a link to nothing, or no plain file)"),
    Bad("no file for the rows", (*TABLE, "dataset.path=configs"), "dataset.path=configs: {here}/configs: no file in this folder ends in .parquet, .pq, .csv, .jsonl, .ndjson, .json"),
    Bad("no row but the header", (*TABLE, "dataset.path=header.csv"), "dataset.path=header.csv: {here}/header.csv: has no rows"),
    Bad("empty CSV", (*TABLE, "dataset.path=empty.csv"), "dataset.path=empty.csv: {here}/empty.csv: is empty"),
    Bad("empty JSON lines", (*TABLE, "dataset.path=empty.jsonl"), "dataset.path=empty.jsonl: {here}/empty.jsonl: has no rows"),
    Bad("empty Parquet", (*TABLE, "dataset.path=empty.parquet"), "dataset.path=empty.parquet: {here}/empty.parquet: cannot be read: "),
    Bad("empty file, npy", (*NPY, "dataset.inputs=empty.npy"), "dataset.inputs=empty.npy: {here}/empty.npy: cannot be read: No data left in file"),
    Bad("empty file, text", ("dataset=text", "model=transformer", "dataset.path=empty.csv"), "dataset.path=empty.csv: {here}/empty.csv: is empty"),
    Bad("empty image", (*IMAGES, "dataset.path=images"), "dataset.path=images: {here}/images/b/1.png: cannot be read: is no image, or none of a known format"),
    Bad("folder without images", (*IMAGES, "dataset.path=configs"), "dataset.path=configs: {here}/configs: no file in this folder ends in .png, .jpg, .jpeg, .bmp, .gif, .tif, .tiff, .webp"),
    Bad("text for Parquet", (*TABLE, "dataset.path=text.parquet"), "dataset.path=text.parquet: {here}/text.parquet: cannot be read: "),
    Bad("text for .npy", (*NPY, "dataset.inputs=text.npy"), "dataset.inputs=text.npy: {here}/text.npy: cannot be read: is no array of numbers that NumPy has saved"),
    Bad("objects in .npy", (*NPY, "dataset.inputs=objects.npy"), "dataset.inputs=objects.npy: {here}/objects.npy: cannot be read: is no array of numbers that NumPy has saved"),
    Bad("ragged rows", (*TABLE, "dataset.path=ragged.csv"), "dataset.path=ragged.csv: {here}/ragged.csv: row 8 (line 9): number of values is 4, of names in the header 3"),
    Bad("ragged rows, JSON", (*TABLE, "dataset.path=ragged.jsonl"), "dataset.path=ragged.jsonl: {here}/ragged.jsonl: row 8 (line 8): is no JSON: "),
    Bad("infinite value", (*TABLE, "dataset.path=infinite.parquet"), "dataset.path=infinite.parquet: {here}/infinite.parquet: row 8, column 'a': inf is not finite"),
    Bad("no label", (*TABLE, "dataset.path=unlabelled.csv"), "dataset.path=unlabelled.csv: {here}/unlabelled.csv: row 8 (line 10), column 'label': the target is missing"),
    Bad("label out of range, CSV", (*TABLE, "dataset.path=negative.csv"), "dataset.path=negative.csv: {here}/negative.csv: row 8 (line 9), column 'label': -1 is no label: whole numbers from 0 to 16777215 are, or text"),
    Bad("label out of range, Parquet", (*TABLE, "dataset.path=negative.parquet"), "dataset.path=negative.parquet: {here}/negative.parquet: row 8, column 'label': -1 is no label: whole numbers from 0 to 16777215 are, or text"),
    Bad("label of billions, CSV", (*TABLE, "dataset.path=billions.csv"), "dataset.path=billions.csv: {here}/billions.csv: row 8 (line 9), column 'label': 4278190081 is no label: whole numbers from 0 to 16777215 are, or text"),
    Bad("NUL in the header", (*TABLE, "dataset.path=nul.csv"), "dataset.path=nul.csv: {here}/nul.csv: a name in the header holds a NUL: is this text?"),
    Bad("Parquet with other numbers of rows", (*TABLE, "dataset.path=counted.parquet"), "dataset.path=counted.parquet: {here}/counted.parquet: is damaged: its row groups do not have as many rows as it says"),
    Bad("broken .npz", (*NPY, "dataset.inputs=broken.npz", "dataset.targets=null"), "dataset.inputs=broken.npz: {here}/broken.npz: cannot be read: "),
    Bad("no such column", (*TABLE, "dataset.path=rows.csv", "dataset.target=lable"), "dataset.path=rows.csv: {here}/rows.csv: no column 'lable'; did you mean label?"),
    Bad("more workers than rows", (*TABLE, "dataset.path=few.csv", "scaling.num_workers=2"), "scaling.num_workers=2: more workers than the 1 training rows; type scaling.num_workers=1"),
    Bad("NaN in a row", (*NPY, "dataset.inputs=nan.npy"), "dataset.inputs=nan.npy: {here}/nan.npy: row 7: nan is not finite"),
    Bad("label out of range", (*NPY, "dataset.targets=negative.npy"), "dataset.targets=negative.npy: {here}/negative.npy: row 9: -1 is no label: whole numbers from 0 to 16777215 are"),
    Bad("label of billions", (*NPY, "dataset.targets=billions.npy"), "dataset.targets=billions.npy: {here}/billions.npy: row 9: 4278190081 is no label: whole numbers from 0 to 16777215 are"),
    Bad("fewer targets than inputs", (*NPY, "dataset.targets=short.npy"), "dataset.inputs=inputs.npy: {here}/inputs.npy: inputs and targets need as many rows; they are (40, 8) and (30,)"),
    Bad("val_fraction", ("dataset.val_fraction=2",), "dataset.val_fraction=2: must be between 0 and 1"),
    Bad("inputs that do not fit", ("model.in_features=7",), "model=models.mlp.MLP: a batch with inputs (32, 1, 8, 8) and targets (32,) failed with RuntimeError: ", "; type model.in_features=null (the data and the plan know it)"),
    Bad("outputs that do not fit", ("model.out_features=3",), "model=models.mlp.MLP: a batch with inputs (32, 1, 8, 8) and targets (32,) failed with IndexError: ", "; type model.out_features=null (the data and the plan know it)"),
    Bad("images wanted", ("model=cnn", "dataset=breast_cancer"), "model=models.cnn.CNN: ValueError: input_shape=[30] must be [channels, height, width]; rows that are no images take model=mlp"),
    Bad("no weights there", ("model.init_from=nowhere",), "model.init_from={here}/nowhere: a checkpoint folder, a .safetensors file or runs:/<run_id> is needed"),
    Bad("weights that are text", ("model.init_from=rows.csv",), "model.init_from={here}/rows.csv: a checkpoint folder, a .safetensors file or runs:/<run_id> is needed"),
    *(
        Bad(f"weights: {kind}", (f"model.init_from=weights/{kind}.safetensors",), f"model.init_from={{here}}/weights/{kind}.safetensors: not a whole .safetensors file (", "; type model.init_from=<another file>")
        for kind in ("truncated", "empty", "text")
    ),
    *(
        Bad(f"another model's {what}", (f"model.init_from={path}",), f"model.init_from={path}: layers.1.weight is [128, 64] in the model and missing in the file; type model.init_strict=false to take what fits")
        for what, path in (("weights", "weights/other.safetensors"), ("checkpoint", "checkpoints/other"))
    ),
    *(
        Bad(f"checkpoint: {kind}", (f"model.init_from=checkpoints/{kind}",), f"model.init_from={{here}}/checkpoints/{kind}: {{here}}/checkpoints/{kind}/{line}", "; type model.init_from=<another checkpoint>")
        for kind, line in DAMAGES.items()
    ),
    *(
        Bad(f"resume: {kind}", ("resume", f"run_dir=runs/{kind}"), f"{{here}}/runs/{kind}/checkpoints/step-00000010/{line}", "; and there is none to fall back to; start a new run")
        for kind, line in DAMAGES.items()
    ),
    Bad("resume: no run", ("resume", "run_dir=configs"), "{here}/configs: not the folder of a run: it has no run.json"),
    Bad("resume: text for run.json", ("resume", "run_dir=runs/torn"), "{here}/runs/torn/run.json: not a whole run.json (JSONDecodeError: "),
    Bad("folder below a file", ("hydra.run.dir=rows.csv/x",), "hydra.run.dir=rows.csv/x: cannot be made (Not a directory); type another folder"),
    Bad("MLflow below a file", ("tracking.uri=sqlite:///rows.csv/mlflow.db",), "tracking.uri=sqlite:///{here}/rows.csv/mlflow.db: {here}/rows.csv is a file, not a folder; type tracking.uri=sqlite:///mlflow.db"),
    Bad("no URI", ("tracking.uri='http://[x'",), "tracking.uri=http://[x: no URI (Invalid IPv6 URL); type tracking.uri=sqlite:///mlflow.db"),
    Bad("folder for SQLite", ("tracking.uri=sqlite:///configs",), "tracking.uri=sqlite:///{here}/configs: is a folder, not a file; type tracking.uri=sqlite:///mlflow.db"),
    Bad("weights of a run in no store", ("model.init_from=runs:/abc", "tracking.uri=sqlite:///configs"), "tracking.uri=sqlite:///{here}/configs: is a folder, not a file; type tracking.uri=sqlite:///mlflow.db"),
    Bad("no server", ("tracking.uri=http://",), "tracking.uri=http://: names no server; type tracking.uri=sqlite:///mlflow.db"),
    Bad("text for SQLite", ("tracking.uri=sqlite:///rows.csv",), "tracking.uri=sqlite:///{here}/rows.csv: is no SQLite file; type tracking.uri=sqlite:///mlflow.db"),
    Bad("folder that cannot be", ("hydra.run.dir=/proc/x",), "hydra.run.dir=/proc/x: cannot be made ("),
    Bad("run name", ("tracking.run_name=../x",), "tracking.run_name=../x: must be a name without / and ..; type "),
    Bad("plain folder for MLflow", ("tracking.uri=./mlruns",), "tracking.uri=./mlruns: MLflow no longer writes to plain folders; type tracking.uri=sqlite:///mlflow.db"),
    Bad("MLflow not there", ("tracking.uri=http://127.0.0.1:9",), "tracking.uri=http://127.0.0.1:9: nothing answers there (Connection refused); start the server, or type tracking=none"),
    Bad("no address", ("scaling.address=true",), "scaling.address=True: must be host:port, ray://host:port, auto or local; type scaling.address=local"),
    Bad("no port", ("scaling.address=127.0.0.1:99999",), "scaling.address=127.0.0.1:99999: nothing answers there (", "type scaling.address=local"),
    Bad("no host", (f"tracking.uri=http://{'a' * 80}.b:80",), "tracking.uri=http://", " or tracking.on_outage=spool to train now and record later"),
    Bad("Ray not there", ("scaling.address=127.0.0.1:9",), "scaling.address=127.0.0.1:9: nothing answers there (Connection refused); "),
    Bad("Adasum on Gloo", ("lr_scaling=adasum",), "lr_scaling=adasum: Adasum needs a Horovod with MPI, this one uses Gloo or NCCL; type lr_scaling=sqrt"),
    Bad("bfloat16 weights on Gloo", (*CONFIGS, "model=narrow"), "model=narrow_net.Narrow: weight is bfloat16, which Gloo cannot average on CPUs; type trainer.precision=bf16"),
    Bad("SyncBatchNorm", (*CONFIGS, "model=synchronised"), "model=torch.nn.SyncBatchNorm: it is a SyncBatchNorm, which needs torch.distributed; use a norm without batch statistics (GroupNorm, LayerNorm)"),
    Bad("one job of a multirun", ("--multirun", "optimizer.lr=0.1,-1"), "job 1 (optimizer.lr=-1): optimizer.lr=-1.0: must be a finite number above 0; type optimizer.lr=0.1"),
    Bad("too many digits", ("checkpoint.every_minutes=" + "9" * 400,), "checkpoint.every_minutes=" + "9" * 400 + ": too large a number"),
    Bad("a text too long for a name", ("dataset.seed=" + "x" * 5000,), "dataset: datasets.tables.digits failed with TypeError: "),
    Bad("rerun", ("--experimental-rerun", "job"), "--experimental-rerun: not here; type python -m runner resume run_dir=<folder of the run>"),
    Bad("a job of an interval", ("--multirun", "optimizer.lr=interval(0.1,1)"), "optimizer.lr=interval(0.1,1): a grid needs values, not an interval; type optimizer.lr=0.1,0.01"),
    Bad("a reference for a list", ("allowed_targets=${seed}",), "allowed_targets=0: must be a list; type allowed_targets=[…]"),
    Bad("no trials", ("search.trials=0",), "search.trials=0: must be 1 or more; type search.trials=1"),
    Bad("asha that stops nothing", ("search=asha", "search.reduction=1"), "search.reduction=1: must be 2 or more; type search.reduction=2"),
    Bad("an unknown search", ("search=optuna",), "search=optuna: no such option; conf/search has asha, grid, pbt, random, tpe"),
    Bad("no job at a time", ("sweep.max_concurrent=0",), "sweep.max_concurrent=0: must be 1 or more; type sweep.max_concurrent=1"),
    Bad("an unknown way on", ("sweep.on_failure=go_on",), "sweep.on_failure=go_on: "),
    Bad("no arguments", ("+model._args_=null",), "model._args_=None: must be a list; type model._args_=[…]"),
    Bad("a job's store that is none", ("--multirun", "tracking.uri=sqlite:///ok.db,./mlruns"), "job 1 (tracking.uri=./mlruns): tracking.uri=./mlruns: MLflow no longer writes to plain folders; type tracking.uri=sqlite:///mlflow.db"),
    Bad("a job's model that does not fit", ("--multirun", "model.in_features=null,7"), "job 1 (model.in_features=7): model=models.mlp.MLP: a batch with inputs (32, 1, 8, 8) and targets (32,) failed with RuntimeError: ", "; type model.in_features=null (the data and the plan know it)"),
    Bad("a job's data that are not there", ("--multirun", *TABLE, "dataset.path=rows.csv,rows.cvs"), "job 1 (", "; did you mean rows.csv?"),
    Bad("a job's workers, before any data", ("--multirun", *TABLE, "dataset.path=rows.cvs", "scaling.num_workers=1,640"), "job 1 (dataset=table dataset.target=label dataset.task=classification dataset.path=rows.cvs scaling.num_workers=640): scaling.num_workers=640: 640 workers × "),
    Bad("an override's typo in a multirun", ("--multirun", "model=mlp,mpl"), "model=mpl: no such option; ", "; type model=mlp"),
)  # fmt: skip


def write_files(here: Path) -> None:
    """What the cases refer to."""
    csv = [f"{row},{row * 2},{row % 2}" for row in range(40)]
    objects = [f'{{"a": {row}, "label": {row % 2}}}' for row in range(40)]
    files: dict[str, str | bytes] = {
        "configs/model/twice.yaml": "_target_: models.mlp.MLP\n_target_: models.cnn.CNN\n",
        "configs/model/tab.yaml": "_target_: models.mlp.MLP\n\thidden: [3]\n",
        "configs/model/empty.yaml": "",
        "configs/model/list.yaml": "- 1\n- 2\n",
        "configs/model/bytes.yaml": b"_target_: \xff",
        "configs/model/endless.yaml": "_target_: models.mlp.MLP\nhidden: &hidden [*hidden]\n",
        "configs/model/open.yaml": "_target_: models.mlp.MLP\nhidden: ${\n",
        "configs/model/broken.yaml": "_target_: models.mlp.MLP\nin_features: null\nout_features: null\nhidden: ${nothing.here}\n",
        "configs/model/circular.yaml": "_target_: models.mlp.MLP\nin_features: ${model.out_features}\nout_features: ${model.in_features}\n",
        "configs/model/unset.yaml": "_target_: models.mlp.MLP\nin_features: ${oc.env:RUNNER_NOT_SET}\nout_features: null\n",
        "configs/model/synchronised.yaml": "_target_: torch.nn.SyncBatchNorm\nnum_features: 1\n",
        "configs/model/narrow.yaml": "_target_: narrow_net.Narrow\n",
        "narrow_net.py": "import torch\nclass Narrow(torch.nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(64, 10, dtype=torch.bfloat16)\n",
        **dict.fromkeys(("empty.csv", "empty.jsonl", "empty.parquet", "empty.npy", "images/a/0.png"), b""),
        "images/b/1.png": b"",
        "text.parquet": "a,b,label\n",
        "text.npy": "a,b,label\n",
        "header.csv": "a,b,label\n",
        "few.csv": "a,b,label\n1,2,0\n3,4,1\n",
        "rows.csv": _csv(csv),
        "ragged.csv": _csv([*csv[:7], "7,0,1,9", *csv[8:]]),
        "ragged.jsonl": "\n".join([*objects[:7], '{"a": 7, "label": 1', *objects[8:]]),
        "unlabelled.csv": _csv(["", *csv[:7], "7,14,", *csv[8:]]),
        "billions.csv": _csv([*csv[:7], "7,14,4278190081", *csv[8:]]),
        "nul.csv": _csv(csv).replace("a,", "\0,", 1),
        "broken.npz": b"PK\x03\x04 and no more",
        "negative.csv": _csv([*csv[:7], "7,14,-1", *csv[8:]]),
    }
    for name, content in files.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (here / "dead.csv").symlink_to("nothing.csv")
    (here / "unreadable.csv").symlink_to("/proc/self/mem")  # by root too
    write_arrays(here)
    write_checkpoints(here)


def _csv(rows: list[str]) -> str:
    return "\n".join(["a,b,label", *rows, ""])


def write_arrays(here: Path) -> None:
    values, labels = np.arange(40.0), np.arange(40) % 2
    for name, row, changed in (("infinite", np.inf, 1), ("negative", 7.0, -1)):
        a, label = values.copy(), labels.copy()
        a[7], label[7] = row, changed
        parquet.write_table(pa.table({"a": a, "label": label}), here / f"{name}.parquet", row_group_size=16)
    inputs, targets = np.ones((40, 8), np.float32), np.arange(40) % 4
    np.save(here / "inputs.npy", inputs)
    np.save(here / "targets.npy", targets)
    np.save(here / "short.npy", targets[:30])
    np.save(here / "objects.npy", np.array([[1], [1, 2]], object))
    inputs[7, 3] = np.nan
    targets[9] = -1
    np.save(here / "nan.npy", inputs)
    np.save(here / "negative.npy", targets)
    targets[9] = 4278190081
    np.save(here / "billions.npy", targets)
    content = (here / "infinite.parquet").read_bytes()
    at = content.rindex(b"\x16\x50\x19")  # in the footer: 40 rows, as a zigzag number
    (here / "counted.parquet").write_bytes(content[:at] + b"\x16\x4e\x19" + content[at + 3 :])


def write_checkpoints(here: Path) -> None:
    """weights/<kind>.safetensors, checkpoints/<kind>, and runs/<kind> that have such a checkpoint as their only one."""
    weights = {"layers.0.weight": torch.ones(3, 64)}
    sound = checkpoint.commit(here / "checkpoints", "other", weights, {"optimizer": {}}, {"epoch": 1})
    state, manifest = (sound / checkpoint.STATE).read_bytes(), (sound / checkpoint.MANIFEST).read_bytes()
    newer = manifest.replace(b'"schema_version": 3', b'"schema_version": 4')
    flipped = bytes([*state[:400], state[400] ^ 1, *state[401:]])
    damages = {
        "truncated": (checkpoint.STATE, state[:-9]),
        "empty": (checkpoint.STATE, b""),
        "text": (checkpoint.STATE, b"not a checkpoint"),
        "flipped": (checkpoint.STATE, flipped),
        "pickle": (checkpoint.STATE, pickle.dumps(print)),
        "newer": (checkpoint.MANIFEST, newer),
        "manifest": (checkpoint.MANIFEST, b"{"),
    }
    composed = compose(["tracking=none"])
    stored = RunFile(None, None, "", config.to_yaml(composed), [], str(here), [], run_folder.now())
    for kind, (name, content) in damages.items():
        of_run = here / "runs" / kind / "checkpoints" / "step-00000010"
        for folder in (here / "checkpoints" / kind, of_run):
            shutil.copytree(sound, folder)
            (folder / name).write_bytes(content)
        stored.write(here / "runs" / kind)
    (here / "runs" / "torn").mkdir()
    (here / "runs" / "torn" / run_folder.RUN).write_text('{"run_id": nul')
    whole = (sound / checkpoint.WEIGHTS).read_bytes()
    (here / "weights").mkdir()
    for kind, content in {
        "truncated": whole[:-9],
        "empty": b"",
        "text": b"not weights",
        "other": whole,
    }.items():
        (here / "weights" / f"{kind}.safetensors").write_bytes(content)
