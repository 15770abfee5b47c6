"""Names of settings, choices and commands in other programs, and the corresponding names in Arno."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ..errors import ArnoError

#: For each setting: its names in other frameworks.
MEANINGS = {
    "local.lr": ("learning_rate", "client_lr", "local_lr", "eta", "step_size"),
    "local.lr_decay": ("learning_rate_decay", "gamma"),
    "local.epochs": ("local_epochs", "num_epochs", "n_epochs", "client_epochs", "local_ep"),
    "local.batch_size": ("batch", "batchsize", "bs", "local_bs", "local_batch_size"),
    "local.weight_decay": ("wd", "l2"),
    "local.clip": ("max_grad_norm", "grad_clip", "clip_norm", "clipping"),
    "server_lr": ("server_learning_rate", "global_lr", "eta_g"),
    "clients": ("num_clients", "n_clients", "num_users", "total_clients", "users", "n_users", "num_supernodes"),
    "participation": (
        "fraction",
        "frac",
        "client_fraction",
        "sample_rate",
        "join_ratio",
        "fraction_fit",
        "fraction_train",
    ),
    "rounds": (
        "num_rounds",
        "n_rounds",
        "comm_round",
        "communication_rounds",
        "global_rounds",
        "global_epochs",
        "iterations",
    ),
    "method": ("algorithm", "algo", "strategy", "aggregator"),
    "data": ("dataset", "dataset_name"),
    "data.root": ("data_dir", "data_path", "dataset_dir"),
    "data.path": ("data.file", "data.filename", "data.csv", "csv_path"),
    "data.label": ("data.target", "data.y", "label_column", "target_column"),
    "method.mu": ("proximal_mu", "prox_mu", "fedprox_mu"),
    "data.val": ("val_split", "val_ratio", "validation_split", "val_size", "valid_size"),
    "partition": ("partitioner", "partition_method", "partition_type", "split_type"),
    "partition.alpha": ("dirichlet_alpha", "dir_alpha", "concentration"),
    "model": ("network", "net", "arch", "architecture", "model_name"),
    "model.hidden": ("hidden_size", "hidden_sizes", "hidden_dim", "hidden_layers"),
    "seed": ("random_seed", "random_state", "manual_seed"),
    "engine.workers": ("num_workers", "n_jobs", "processes", "num_cpus"),
    "out": ("output", "output_dir", "save_dir", "log_dir", "run_dir", "experiment_name", "run_name", "exp_name"),
    "track": ("logger", "tracker", "report_to"),
    "eval.every": ("eval_gap", "eval_interval", "test_interval", "test_gap", "evaluation_frequency"),
    "checkpoint.every": ("save_every", "save_interval", "checkpoint_interval"),
}
#: Words at the start of a name that do not change its meaning, as in `max_epochs` and `local_num_epochs`.
FILLING = ("num", "n", "max", "total", "train", "training", "local", "client", "central", "global", "default")
SHARE = "the number of clients in a round follows from their share", "try participation=0.25 for 5 of 20 clients"
#: Settings of other frameworks that Arno does not have, with the rule and the remedy of the error.
INSTEAD = {
    ("clients_per_round", "cohort", "cohort_size", "min_fit_clients", "min_available_clients", "min_clients"): SHARE,
    ("optimizer", "optim", "optimiser", "client_optimizer", "local_optimizer"): (
        "clients train with SGD (local.lr, local.momentum, local.weight_decay)",
        "leave it out; for Adam on the server, write method=fedadam",
    ),
    ("nesterov",): ("local.momentum has no Nesterov form", "leave it out"),
    ("scheduler", "lr_scheduler"): (
        "the learning rate falls by the same factor after every round",
        "try local.lr_decay=0.99",
    ),
    ("loss", "criterion", "loss_fn", "loss_function"): (
        "the loss follows from the task",
        "leave it out, or try task=custom task.target=my_task.py:factory",
    ),
    ("num_classes", "n_classes", "in_channels", "input_dim", "input_shape", "output_dim", "out_features"): (
        "shapes and classes follow from the data",
        "leave it out",
    ),
    ("iid", "noniid", "non_iid", "split"): (
        "the partition decides which client holds which samples",
        "try partition=iid, or partition=dirichlet partition.alpha=0.1",
    ),
    ("gpu", "gpus", "num_gpus", "cuda", "use_cuda"): ("the device is chosen by name", "try device=cuda"),
    ("wandb", "mlflow", "tensorboard"): (
        "a tracker is chosen by name",
        "try track=mlflow, track=tensorboard or track=wandb",
    ),
    ("resume", "resume_from", "ckpt", "ckpt_path", "resume_from_checkpoint"): (
        "a stopped run is continued by another command",
        "try arno resume RUN",
    ),
    ("early_stopping",): ("a run does all its rounds and keeps the best model", "leave it out; change rounds=..."),
}
#: For each choice of a group: its names in other frameworks.
CHOICES = {
    "data": {
        "table": ("csv", "tsv", "parquet", "feather", "tabular", "dataframe", "pandas"),
        "folder": ("images", "imagefolder", "image_folder"),
        "leaf": ("femnist", "shakespeare", "sent140"),
        "hub": ("huggingface", "hf"),
        "npz": ("numpy", "npy"),
        "fashion_mnist": ("fashionmnist", "fmnist"),
        "cifar10": ("cifar",),
    },
    "partition": {
        "dirichlet": ("noniid", "dir", "lda", "label_skew", "hetero", "heterogeneous", "skewed"),
        "classes": ("pathological", "pat", "label", "by_class"),
        "shards": ("shard",),
        "iid": ("homo", "homogeneous", "uniform", "random"),
        "natural": ("client", "user", "by_client"),
    },
    "model": {
        "softmax": ("linear", "logistic", "logistic_regression", "logreg", "lr", "mclr"),
        "lenet5": ("cnn", "conv", "lenet"),
        "resnet18": ("resnet",),
        "mlp": ("dnn", "nn", "perceptron"),
        "lstm": ("rnn", "gru"),
        "transformer": ("gpt", "bert", "attention"),
    },
    "method": {
        "fedavg": ("sgd", "fedsgd", "mean", "average", "base", "baseline"),
        "fedavgm": ("momentum", "server_momentum"),
        "fedadam": ("adam", "fedopt"),
        "local": ("standalone", "separate", "none"),
    },
    "engine": {
        "processes": ("multiprocessing", "process", "parallel", "joblib", "threads"),
        "serial": ("sequential", "simple", "single"),
        "batched": ("vmap", "vectorized", "vectorised"),
        "auto": ("default",),
    },
    "select": {"uniform": ("random",), "powd": ("power_of_choice", "pow_d", "loss"), "roundrobin": ("cyclic",)},
    "task": {
        "classification": ("multiclass", "class"),
        "regression": ("mse", "numeric"),
        "tokens": ("text", "language_model", "lm"),
    },
}
#: For each command: its names in other programs.
COMMANDS = {
    "run": ("train", "fit", "simulate", "start"),
    "resume": ("continue", "restart"),
    "compare": ("sweep", "grid", "benchmark", "bench", "multirun"),
    "tune": ("search", "hpo", "optimize", "optimise"),
    "runs": ("list", "ls", "history", "status"),
    "report": ("plot", "show", "html"),
    "methods": ("method", "algorithms", "strategies"),
    "data": ("dataset", "datasets", "partition", "partitions"),
    "doctor": ("check", "info", "env", "version"),
    "ui": ("dashboard", "serve", "web"),
}
TABLES = (".csv", ".tsv", ".parquet", ".feather", ".csv.gz", ".tsv.gz")


def meant(key: str, value: str, owned: bool) -> ArnoError | None:
    """The error for a key that is a setting under another name; None if the key is not in the list.

    owned: whether a choice of a group has a setting with the name of the key; then the key means this setting.

    >>> str(meant("server-app.num-rounds", "3", False))
    "unknown key 'server-app.num-rounds': the setting is called rounds; try rounds=3"
    """
    what = f"unknown key {key!r}"
    if key.startswith("hydra."):
        return ArnoError(what, "Arno reads settings as Hydra writes them, but does not run Hydra", "try out=FOLDER")
    leaf = plain(key.rpartition(".")[2])
    for name in _shorter(leaf):
        for others, (rule, remedy) in INSTEAD.items():
            if name in others and ("." not in key or not owned):
                return ArnoError(what, rule, remedy)
        ours = next((ours for ours, others in MEANINGS.items() if name in others or key in others), None)
        if ours is None and name != leaf:
            ours = next((ours for ours in MEANINGS if ours.rpartition(".")[2] == name), None)
        if ours is not None and not owned:
            return ArnoError(what, f"the setting is called {ours}", f"try {ours}={value}")
    return None


def _shorter(name: str) -> Iterator[str]:
    """The name, then the name without the first word if this word is in FILLING, and so on."""
    yield name
    first, underline, rest = name.partition("_")
    if underline and first in FILLING:
        yield from _shorter(rest)


def choice(group: str, name: str, known: Iterable[str]) -> ArnoError | None:
    """The error for a choice under another name, or for a file in place of a name; None if the choice is not known.

    >>> str(choice("partition", "non-IID", ["dirichlet", "iid"]))
    "unknown partition 'non-IID': the choice is called dirichlet; try partition=dirichlet"
    """
    what = f"unknown {group} {name[:100]!r}"
    if group == "data" and name.lower().endswith(TABLES):
        remedy = f"try data=table data.path={name} data.label=COLUMN data.client=COLUMN"
        return ArnoError(what, "a file is the path of a data set", remedy)
    if group == "data" and name.endswith((".npz", ".txt")):
        kind = "npz" if name.endswith(".npz") else "text"
        return ArnoError(what, "a file is the path of a data set", f"try data={kind} data.path={name}")
    if re.fullmatch(r"\S+\.py(:\w+)?", name):
        target = name if ":" in name else f"{name}:NAME"
        return ArnoError(what, "your own code is called custom", f"try {group}=custom {group}.target={target}")
    others = CHOICES.get(group, {})
    same = [one for one in known if plain(one).replace("_", "") == plain(name).replace("_", "")]
    same += [ours for ours, names in others.items() if plain(name) in names or plain(name).replace("_", "") in names]
    if not same:
        return None
    return ArnoError(what, f"the choice is called {same[0]}", f"try {group}={same[0]}")


def command(word: str) -> ArnoError | None:
    """The error for a command under another name; None if the name is not in the list."""
    ours = next((ours for ours, others in COMMANDS.items() if word.lower() in others), None)
    return ArnoError(f"unknown command {word!r}", f"the command is called {ours}", f"try arno {ours}") if ours else None


def plain(name: str) -> str:
    """A name in lower case, with underscores in place of hyphens."""
    return name.lower().replace("-", "_")
