"""`eval.finetune`: every client adapts the global model of any method before its own test."""

from __future__ import annotations

import pytest
import torch

import arno
from arno import ArnoError
from arno.config import build
from arno.config.settings import compose, plain
from arno.core.federation import Federation, refuse_rows
from arno.methods.finetune import FineTune

ALL = torch.arange(5)
WORDS = ("clients=5", "data.limit=200", "partition.alpha=0.3", "data.client_test=0.3", "model.hidden=[8]")
GLOBAL = ("fedavg", "fedprox", "scaffold", "fedrolex", "fedexp", "fedntd", "mime", "lorenzo", "qrmix", "feddc")


def federation(*words: str) -> Federation:
    return build.federation(plain(compose([*WORDS, "engine=serial", *words])))


@pytest.mark.parametrize("method", GLOBAL)
def test_the_final_model_of_any_method_is_adapted_and_the_rounds_stay_as_they_are(method):
    words = [f"method={method}", "local.lr=0.05", "local.weight_decay=0"]  # Lorenzo has other defaults
    words += ["method.min_batches=0"] if method == "lorenzo" else []
    plain_run, tuned = federation(*words), federation(*words, "eval.finetune=2")
    for _ in range(2):
        plain_run.round()
        tuned.round()
    assert torch.equal(plain_run.w, tuned.w)
    assert "personal_f1" not in plain_run.own_scores()
    row = tuned.own_scores()
    assert {"personal_f1", "personal_f1_worst_decile", "own_f1"} <= row.keys()
    assert row == tuned.own_scores(), "scoring twice gives the same"
    mine = tuned.personal(ALL)
    assert (mine - tuned.w).norm(dim=1).min() > 0
    by_hand = build.federation(plain(compose([*WORDS, "engine=serial", "method.finetune_epochs=2"])))
    by_hand.w, by_hand.t = tuned.w, tuned.t  # the same random numbers, whatever the method
    assert torch.equal(mine, by_hand.personal(ALL))


def test_the_model_that_a_method_reports_is_the_one_that_is_adapted():
    fed = federation("method=fedexp", "method.report=mean_of_two", "eval.finetune=1")
    for _ in range(3):
        fed.round()
    other = federation("eval.finetune=1")
    other.w, other.t = fed.evaluated(), fed.t
    assert not torch.equal(fed.w, fed.evaluated())
    assert torch.equal(fed.personal(ALL), other.personal(ALL))


def test_engines_and_a_resumed_run_record_the_same_scores(tmp_path):
    settings = {"rounds": 2, "method": "scaffold", "eval": {"finetune": 2}}
    one, two = (arno.run(*WORDS, f"engine={e}", out=str(tmp_path / e), **settings) for e in ("serial", "processes"))
    assert one.rows[-1]["personal_f1"] == two.rows[-1]["personal_f1"]
    assert one.rows[-1]["personal_loss"] == two.rows[-1]["personal_loss"]
    half = arno.run(*WORDS, "engine=serial", out=str(tmp_path / "half"), **settings | {"rounds": 1})
    arno.resume(half.path, "rounds=2")
    assert arno.RunResult(half.path).rows[-1]["personal_loss"] == one.rows[-1]["personal_loss"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("eval.finetune=2", "data.client_test=null"), r"eval\.finetune = 2: .* there are none; add data\.client_test"),
        (("eval.finetune=2", "problem=quadratic", "data.client_test=null"), "there are none"),
        (
            ("eval.finetune=2", "method=fedper"),
            r"eval\.finetune = 2 with method=fedper: the method already has personal models",
        ),
        (("eval.finetune=2", "method=ditto"), "the method already has personal models"),
        (("eval.finetune=-1",), "it is a number of epochs"),
    ],
)
def test_it_is_refused_where_it_makes_no_sense(words, reason):
    with pytest.raises(ArnoError, match=reason):
        federation(*words)


def test_workers_that_return_only_sums_cannot_make_personal_models():
    with pytest.raises(ArnoError, match=r"engine\.reduce=worker with FineTune"):
        refuse_rows([FineTune(1)])


def test_a_run_that_starts_from_another_runs_model_begins_its_personal_models_there(tmp_path):
    stage = arno.run(*WORDS, engine="serial", rounds=2, out=str(tmp_path / "one"))
    words = [*WORDS, "engine=serial", "method=ditto", f"load={stage.path}", "rounds=3"]
    after = arno.run(*words, out=str(tmp_path / "two"))
    from arno.runs import warm_start

    config = plain(compose(words))
    fed = build.federation(config)
    warm_start.begin(fed, config)
    assert torch.equal(fed.personal(ALL), stage.final.expand(5, -1))
    fed.round()
    assert torch.equal(fed.w, after.final)


def test_a_model_of_another_network_names_settings_that_can_be_pasted(tmp_path):
    stage = arno.run(*WORDS, engine="serial", rounds=1, out=str(tmp_path / "one"))
    with pytest.raises(ArnoError, match=r"model\.channels_last=null") as caught:
        arno.run(*WORDS, "model=mlp", "model.hidden=[7]", f"load={stage.path}", "rounds=2", out=str(tmp_path / "two"))
    assert "None" not in str(caught.value)
