"""The command line of FedRCL with QR-Mix, translated to the command line of Arno.

    python federated_train.py client=fedrcl dataset=cifar10 server.type=ServerM trainer.global_rounds=200 \\
        trainer.num_clients=100 trainer.participation_rate=0.05 split.alpha=0.3 qrmix.stage2=false
    python federated_train.py client=fedrcl dataset=cifar10 server.type=ServerQRFC server.beta=0.01 server.gamma=1.0 \\
        trainer.global_rounds=300 … qrmix.stage2=true load_model_path=./checkpoints/.../model_e200.pth

Every run is a folder in `./checkpoints`, unless `out=` names another folder. `FOLDER/model_e200.pth` is a file of this
name that `torch.save` wrote, or, if there is no such file, the checkpoint of the run in FOLDER after round 200. `...`
stands for any folders in between; the newest checkpoint or file is taken. Arno's own settings (data.root=…,
model.width=…, out=…) may be given, too.
"""

from __future__ import annotations

import glob
import re
import secrets
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from ..config import settings as configs
from ..errors import ArnoError, one_line, unknown

#: Keys with a counterpart of the same meaning.
SAME = {
    "dataset": "data",
    "model": "model",
    "seed": "seed",
    "batch_size": "local.batch_size",
    "trainer.global_rounds": "rounds",
    "trainer.num_clients": "clients",
    "trainer.participation_rate": "participation",
    "trainer.local_epochs": "local.epochs",
    "trainer.local_lr": "local.lr",
    "trainer.local_lr_decay": "local.lr_decay",
    "trainer.global_lr": "server_lr",
    "split.mode": "partition",
    "split.alpha": "partition.alpha",
    "optimizer.momentum": "local.momentum",
    "optimizer.wd": "local.weight_decay",
}
#: The values of `client=`, and the part that each adds to the loss; None: no part.
CLIENTS = {"fedrcl": "rcl", "base": None, "fedavg": None, "fedprox": "proximal", "moon": "moon"}
#: The values of `server.type=`: the part of each, and the setting of this part that each `server.…` sets.
SERVERS: dict[str, tuple[str | None, dict[str, str]]] = {
    "Server": (None, {}),
    "ServerM": ("server_momentum", {"momentum": "momentum"}),
    "ServerAdam": ("server_adaptive", {"momentum": "beta1", "beta2": "beta2", "tau": "tau"}),
    "ServerQRFC": ("qrmix", {"beta": "beta", "gamma": "gamma", "rule": "rule", "backbone": "backbone"}),
}
QRMIX = ("rank_k", "oversampling", "power_iters", "at", "every_client", "every_round", "adaptive", "block")
OTHER = ("client", "load_model_path", "server.type", "qrmix.stage2")
#: Every key of the command line.
KEYS = sorted(
    {
        *SAME,
        *OTHER,
        *(f"server.{key}" for _, names in SERVERS.values() for key in names),
        *(f"qrmix.{key}" for key in QRMIX),
    }
)

#: The settings of the FedRCL paper, which the command line overrides.
DEFAULTS = {
    "dataset": "cifar10",
    "model": "resnet18",
    "trainer.global_rounds": "1000",
    "trainer.num_clients": "100",
    "trainer.participation_rate": "0.05",
    "trainer.local_epochs": "5",
    "trainer.local_lr": "0.1",
    "trainer.local_lr_decay": "0.998",
    "split.mode": "dirichlet",
    "split.alpha": "0.3",
    "batch_size": "50",
    "optimizer.wd": "0.001",
}
#: The data sets of colour images, which are augmented.
COLOUR = ("cifar10", "cifar100", "tinyimagenet")


@dataclass
class Translation:
    """Arno's settings for a command line, and notes for the user."""

    overrides: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def translate(arguments: Sequence[str]) -> Translation:
    """The overrides of `arno run` that do what the arguments ask for.

    >>> translate(["client=fedrcl", "server.type=ServerM", "split.alpha=0.1"]).overrides[:3]
    ['method=compose', 'method.parts=[rcl,server_momentum]', 'data=cifar10']
    """
    given = dict(_word(text) for text in arguments)
    own = [f.name for f in fields(configs.Config) if f.name not in ("method", "load")]
    for key in given:
        if key not in KEYS and key.split(".")[0] not in own:
            raise unknown("key", key, KEYS)

    out = Translation()
    out.overrides += _method(given, out.notes)
    values = DEFAULTS | {key: given[key] for key in SAME if key in given}
    if values["split.mode"] != "dirichlet" and "split.alpha" in values:
        if "split.alpha" in given:
            out.notes.append(f"split.alpha has no effect with split.mode={values['split.mode']}")
        del values["split.alpha"]
    if given.get("server.type") == "ServerAdam":
        values.setdefault("trainer.global_lr", "0.01")
    out.overrides += [f"{SAME[key]}={value}" for key, value in values.items()]
    out.overrides += ["data.val=0", "local.clip=10"]  # FedRCL holds out no validation data
    if values["dataset"] in COLOUR:
        out.overrides.append("local.augment=true")
    if "load_model_path" in given:
        out.overrides.append(f"load={find(given['load_model_path'])}")
    out.overrides += [f"{k}={v}" for k, v in given.items() if k not in KEYS]
    if "out" not in given:
        names = f"{given.get('client', 'fedrcl')}-{given.get('server.type', 'Server')}-{values['dataset']}"
        out.overrides.append(f"out=checkpoints/{datetime.now():%Y%m%d-%H%M%S}-{names}-{secrets.token_hex(2)}")
    return out


def find(text: str) -> str:
    """The checkpoint or .pth file that a `load_model_path` names; an existing path is taken as it is."""
    path = Path(text).expanduser()
    name = re.fullmatch(r"model_e(\d+)\.pth", path.name)
    where, dots, below = str(path.parent).partition("...")
    if path.exists() or not (name or dots):
        return str(path)
    folders = f"**/{below.strip('/').replace('...', '**')}/".replace("//", "/") if dots else ""
    wanted = [glob.escape(path.name)] + ([f"checkpoints/{int(name[1]):08d}.safetensors"] if name else [])
    found = [file for one in wanted for file in Path(where or ".").glob(folders + one)]
    if not found and name:
        raise ArnoError(
            f"load_model_path={text}",
            f"there is no such file, and no run there has a checkpoint after round {int(name[1])}",
            "give the path that stage 1 printed; a run keeps its last two checkpoints, one every ten rounds",
        )
    if not found:
        raise ArnoError(f"load_model_path={text}", f"no folder there holds {path.name}", "give the path of the file")
    return str(max(found, key=lambda file: file.stat().st_mtime))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Translate the arguments, print the equivalent command, and run it."""
    from .. import cli

    arguments = list(sys.argv[1:] if argv is None else argv)
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        print("keys:", ", ".join(KEYS))
        sys.exit(0)
    try:
        found = translate(arguments)
        config = configs.plain(configs.compose(found.overrides))
    except ArnoError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        sys.exit(2)
    for note in found.notes:
        print(f"note: {note}")
    print(shlex.join(["arno", "run", *configs.as_overrides(config)]))
    print(f"a later stage can load it: load_model_path={config['out']}/model_e{config['rounds']}.pth", flush=True)
    cli.main(["run", *found.overrides])


def _method(given: dict[str, str], notes: list[str]) -> list[str]:
    """The method: what the client adds to the loss, and the server."""
    client, server = given.get("client", "fedrcl"), given.get("server.type", "Server")
    if client not in CLIENTS:
        raise unknown("client", client, CLIENTS)
    if server not in SERVERS:
        raise unknown("server.type", server, SERVERS)
    stage2 = configs.parse(f"stage2={given.get('qrmix.stage2', 'false')}")[1]
    if not isinstance(stage2, bool):
        raise ArnoError(f"qrmix.stage2={given['qrmix.stage2']}", "it must be true or false")
    mixing = server == "ServerQRFC" and stage2
    if server == "ServerQRFC" and not stage2:
        notes.append("ServerQRFC without qrmix.stage2=true gets no eigenpairs: it takes the plain mean, as Server does")
    if stage2 and server != "ServerQRFC":
        notes.append(f"qrmix.stage2=true has no effect with server.type={server}: only ServerQRFC uses eigenpairs")
    part, settings = SERVERS[server if server != "ServerQRFC" or mixing else "Server"]
    words = []
    for key, value in given.items():
        group, _, name = key.partition(".")
        if group == "server" and name in settings:
            words.append(f"method.{part}.{settings[name]}={value}")
        elif group == "qrmix" and name in QRMIX and mixing:
            words.append(f"method.qrmix.{name}={value}")
        elif group in ("server", "qrmix") and key not in OTHER:
            notes.append(f"{key} has no effect with server.type={server} and qrmix.stage2={str(stage2).lower()}")
    parts = [name for name in (CLIENTS[client], part) if name]
    if not parts:
        return ["method=fedavg"]
    return ["method=compose", f"method.parts=[{','.join(parts)}]", *words]


def _word(text: str) -> tuple[str, Any]:
    configs.parse(text)
    key, _, value = text.partition("=")
    return key.strip().lstrip("+"), value
