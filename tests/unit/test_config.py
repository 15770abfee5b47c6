"""Settings: types, groups, nearest names, files and the way back to a command line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arno.config import meanings
from arno.config.settings import (
    COMMON,
    GROUPS,
    as_overrides,
    compose,
    describe,
    differences,
    parse,
    plain,
    read,
    registry,
    written,
)
from arno.errors import ArnoError
from arno.grids.compare import as_words


def resolved(*overrides, **base):
    return plain(compose(overrides, base))


def test_defaults_are_the_described_ones():
    config = resolved()
    for key, default, text in describe():
        value = config
        for name in key.split("."):
            value = value[name]
        assert (value["kind"] if key in GROUPS else value) == default
        assert text


def test_the_last_word_counts():
    assert resolved("seed=1", "seed=2")["seed"] == 2
    assert resolved("seed=1", seed=5)["seed"] == 1
    assert resolved("method=fedavg", "method=fedprox")["method"]["kind"] == "fedprox"


def test_settings_of_a_group_come_from_the_signature_of_its_factory():
    assert resolved("method=fedprox")["method"] == {"kind": "fedprox", "mu": 0.01}
    assert resolved("method.mu=1", "method=fedprox")["method"] == {"kind": "fedprox", "mu": 1}
    assert resolved("partition=shards")["partition"] == {"kind": "shards", "shards": 2, "seed": None}


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_of_every_group_composes(group):
    for name in registry(group).names():
        config = resolved(f"{group}={name}")
        assert config[group]["kind"] == name
        assert config[group].keys() >= registry(group).settings(name).keys()


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("local.lr=1e-3", "local.lr", 0.001),
        ("local.lr=uniform(0.001, 0.1)", "local.lr", "uniform(0.001, 0.1)"),
        ("model.hidden=[64, 32]", "model.hidden", [64, 32]),
        ("local.clip=null", "local.clip", None),
        ("local.augment=true", "local.augment", True),
        ("out=a=b", "out", "a=b"),
        ("+seed=3", "seed", 3),
        ("data.path='3'", "data.path", "3"),
    ],
)
def test_values_are_yaml(text, key, value):
    assert parse(text) == (key, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("seed=3", 3), ("participation=1", 1.0), ("local.clip=2", 2.0), ("local.shuffle=no", False), ("out=3", "3")],
)
def test_values_take_the_type_of_the_setting(text, value):
    node = resolved(text)
    for name in text.split("=")[0].split("."):
        node = node[name]
    assert node == value
    assert type(node) is type(value)


def test_values_that_may_differ_per_client():
    for value in (0.1, [0.1, 0.2], "uniform(0.01, 0.1)", "choice(1, 5)"):
        assert resolved(local={"lr": value})["local"]["lr"] == value
    assert resolved("local.lr=[0.1, 0.2]")["local"]["lr"] == [0.1, 0.2]
    for wrong in ("true", "{a: 1}", "[a, b]", "null", "[[1], [2]]"):
        with pytest.raises(ArnoError, match="one number per client"):
            compose([f"local.lr={wrong}"])


def test_a_file_is_the_base_and_overrides_go_above_it(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("method: fedprox\nrounds: 7\nlocal:\n  lr: 0.2\n")
    config = plain(compose(["rounds=8"], read(path)))
    assert (config["method"]["kind"], config["rounds"], config["local"]["lr"]) == ("fedprox", 8, 0.2)


def test_another_kind_drops_the_base_settings_of_the_group_but_for_the_common_ones():
    base = resolved("method=fedprox", "method.mu=1", "data.val=0.3", "data.limit=100", "partition.alpha=9")
    config = resolved("method=fedvarp", "data=mnist", **base)
    assert config["method"] == {"kind": "fedvarp"}
    common = {"val": 0.3, "client_val": None, "client_test": None, "shift": None, "shift_strength": None}
    assert config["data"] == {"kind": "mnist", "root": None, "limit": None, **common}
    assert config["partition"]["alpha"] == 9
    with pytest.raises(ArnoError, match="method=fedvarp has no such setting"):
        compose(["method=fedvarp", "method.mu=1"], base)


def test_differences_are_those_that_matter():
    a = resolved("method=fedvarp")
    assert differences(a, resolved("method=fedvarp", "rounds=9", "eval.every=3", "checkpoint.keep=5", "out=x")) == []
    assert differences(a, resolved("method=fedvarp", "seed=1", "local.lr=0.1")) == [
        "local.lr: 0.05 → 0.1",
        "seed: 0 → 1",
    ]
    assert differences(a, resolved("method=fedprox")) == ["method.kind: fedvarp → fedprox", "method.mu: None → 0.01"]


def test_unknown_keys_name_the_nearest():
    for typo, meant in (
        ("ronds=1", "rounds"),
        ("local.batch_siz=1", "local.batch_size"),
        ("evl.every=1", "eval.every"),
    ):
        with pytest.raises(ArnoError, match=f"did you mean '{meant}'"):
            compose([typo])
    with pytest.raises(ArnoError, match="unknown key"):
        compose(["method.kindd=fedprox"])


def test_interpolation_that_leads_nowhere():
    assert resolved("eval.every=${checkpoint.every}")["eval"]["every"] == 10
    with pytest.raises(ArnoError, match="cannot be resolved"):
        resolved("out=${nowhere}")


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["method=fedprox", "method.mu=choice(0.1, 1)", "seed=4"],
        ["model.hidden=[64, 32]", "local.lr=[0.1, 0.2]", "local.clip=1.5"],
        ["data=npz", "data.path=my data/it's.npz", "data.val=0"],
        ["partition=file", "partition.path='12'", "out=null"],
        ["local.augment=true", "device=cpu", "dtype=float64", "weighting=uniform"],
    ],
)
def test_as_overrides_is_the_way_back(overrides):
    config = resolved(*overrides)
    assert resolved(*as_overrides(config)) == config


def test_the_command_of_a_run_names_its_own_files(tmp_path):
    (tmp_path / "mine.py").write_text("from arno import Part\ndef factory(*, a=1):\n    return [Part()]\n")
    config = resolved("method=custom", f"method.target={tmp_path / 'mine.py'}:factory", "method.a=2", "rounds=3")
    words = as_overrides(config)
    assert words[:2] == ["method=custom", f"method.target={tmp_path / 'mine.py'}:factory"]
    assert resolved(*words) == config


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**9), 10**9),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12).filter(
            lambda t: "$" not in t
        ),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
    )
)
def test_what_is_written_reads_back(value):
    assert parse(f"key={written(value)}") == ("key", value)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["lr=0.1"], r"try local\.lr="),
        (["method=fedprox", "mu=1"], r"try method\.mu="),
        (["mu=1"], r"try .*method=fedprox method\.mu="),
        (["rouns=3"], "did you mean 'rounds'"),
    ],
)
def test_a_setting_without_its_group_is_told_where_it_lives(words, remedy):
    with pytest.raises(ArnoError, match=remedy):
        compose(words)


def test_a_limit_works_for_data_of_ones_own():
    from arno.config import build

    target = Path(__file__).parents[2] / "examples" / "my_data.py"
    words = ("data=custom", f"data.target={target}:factory", "data.limit=60", "data.val=0", "clients=3")
    assert len(build.split(resolved(*words))[0].y) == 60


def test_what_other_frameworks_call_a_setting_is_none_of_ours():
    ours = {key for key, *_ in describe()}
    ours |= {f"{group}.{key}" for group in GROUPS for one in registry(group).names() for key in settings_of(group, one)}
    assert set(meanings.MEANINGS) <= ours
    others = [name for names in [*meanings.MEANINGS.values(), *meanings.INSTEAD] for name in names]
    assert len(set(others)) == len(others)
    assert not ours & set(others)


def settings_of(group, name):
    return [*registry(group).settings(name), *COMMON.get(group, ())]


def test_what_others_call_a_choice_is_none_of_ours():
    for group, others in meanings.CHOICES.items():
        ours = set(registry(group).names())
        assert set(others) <= ours
        names = [name for listed in others.values() for name in listed]
        assert len(set(names)) == len(names)
        assert not ours & set(names)


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("learning_rate=0.1", "try local.lr=0.1"),
        ("local_learning_rate=0.1", "try local.lr=0.1"),
        ("max_epochs=3", "try local.epochs=3"),
        ("central_num_iterations=3", "try rounds=3"),
        ("server-app.num-rounds=3", "try rounds=3"),
        ("num_clients_per_round=5", "try participation=0.25 for 5 of 20 clients"),
        ("optimizer=adam", "write method=fedadam"),
        ("loss=ce", "the loss follows from the task"),
        ("hydra.run.dir=x", "try out=FOLDER"),
        ("gpus=1", "try device=cuda"),
        ("iid=true", "try partition=iid"),
        ("method.proximal_mu=0.1", "try method.mu=0.1"),
        ("data=MNIST", "try data=mnist"),
        ("method=Fed-Avg", "try method=fedavg"),
        ("partition=non-iid", "try partition=dirichlet"),
        ("data=heart.CSV", "try data=table data.path=heart.CSV data.label=COLUMN"),
        ("model=net.py:Net", "try model=custom model.target=net.py:Net"),
        ("time_budget=60", "see arno run --help"),
        ("method=zzzzzzzz", "arno methods lists them"),
    ],
)
def test_what_other_frameworks_say_is_answered_with_ours(word, remedy):
    with pytest.raises(ArnoError, match=re.escape(remedy)):
        compose([word])


def test_every_remedy_for_a_setting_can_be_followed():
    for ours, others in meanings.MEANINGS.items():
        error = meanings.meant(others[0], "1", owned=False)
        assert str(error).endswith(f"try {ours}=1")


def test_a_changed_configuration_does_not_change_the_next_one():
    words = ["model=mlp", "model.hidden=[64, 32]", "local.lr=0.3"]
    first = compose(words)
    expected = plain(first)
    first.model.hidden.append(16)
    first.local.lr, first.partition.alpha = 5.0, 7.0
    parse(words[1])[1].append(8)
    assert plain(compose(words)) == expected
    assert resolved("model=mlp") == resolved("model=mlp")


def test_defaults_are_those_of_the_factory_registered_last(monkeypatch):
    methods = registry("method")
    monkeypatch.setattr(methods, "_factories", dict(methods._factories))
    monkeypatch.setattr(methods, "_info", dict(methods._info))
    for mu in (0.1, 0.2):

        @methods.register("mine")
        def mine(*, mu: float = mu):
            return []

        assert resolved("method=mine")["method"]["mu"] == mu


def test_numbers_of_numpy_and_torch_are_numbers():
    local = {"lr": np.float32(0.5), "epochs": np.int64(2), "batch_size": [np.int64(4), 5]}
    config = resolved(seed=np.int64(3), clients=torch.tensor(2), rounds=np.array(7), local=local)
    assert (config["seed"], config["clients"], config["rounds"]) == (3, 2, 7)
    assert (config["local"]["lr"], config["local"]["epochs"], config["local"]["batch_size"]) == (0.5, 2, [4, 5])
    assert as_words({"seed": np.arange(2), "local": {"lr": [np.float64(0.5), 0.25]}}) == [
        "seed=0,1",
        "local.lr=0.5,0.25",
    ]


def test_a_setting_that_is_no_text():
    with pytest.raises(ArnoError, match=r"argument \{'rounds': 1\}: settings are written key=value"):
        compose([{"rounds": 1}])


def test_a_rate_that_decays_to_nothing_is_refused():
    with pytest.raises(ArnoError, match=r"local.lr_decay = 0: it must be above 0"):
        resolved("local.lr_decay=0")
