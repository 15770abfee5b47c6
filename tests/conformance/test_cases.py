"""The packaged cases replay within their tolerance, and a wrong number is noticed."""

import json

import numpy as np
import pytest

from arno.conform import PACKAGED, read, replay
from arno.errors import ArnoError

CASES = sorted(PACKAGED.glob("*.npz"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(case):
    outcome = replay(case)
    assert outcome.ok, f"largest error {outcome.error:.3e}, allowed {outcome.tolerance:.0e}"


def rewrite(source, target, change):
    with np.load(source) as file:
        arrays = dict(file)
    spec = json.loads(str(arrays.pop("spec")))
    change(spec, arrays)
    np.savez(target, spec=json.dumps(spec), **arrays)
    return target


def test_a_wrong_expectation_fails(tmp_path):
    def nudge(spec, arrays):
        arrays["w"][-1, 3] += 1e-8

    bad = rewrite(PACKAGED / "fedavg_mlp_uniform.npz", tmp_path / "bad.npz", nudge)
    assert not replay(bad).ok
    assert replay(bad).error == pytest.approx(1e-8, rel=1e-3)


def test_an_expectation_that_is_not_a_number_fails(tmp_path):
    def spoil(spec, arrays):
        arrays["w"][0, 0] = np.nan

    assert not replay(rewrite(PACKAGED / "scaffold_mlp_samples.npz", tmp_path / "nan.npz", spoil)).ok


def test_a_client_drawn_twice_in_a_case(tmp_path):
    """Repeats are part of the format: the expected model moves when a client is drawn twice."""

    def repeat(spec, arrays):
        spec["participation"][0] = [*spec["participation"][0], spec["participation"][0][0]]

    assert not replay(rewrite(PACKAGED / "fedavg_mlp_uniform.npz", tmp_path / "repeat.npz", repeat)).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec, arrays: spec.update(version=2), "version 2"),
        (lambda spec, arrays: spec.pop("tol"), "lacks tol"),
        (lambda spec, arrays: spec.update(kind="dance"), "unknown kind of case 'dance'"),
        (lambda spec, arrays: spec["method"].update(name="fedavgg"), "unknown method 'fedavgg'"),
        (lambda spec, arrays: arrays.pop("w0"), "'w0' is missing"),
    ],
)
def test_a_file_that_is_no_case_is_refused(tmp_path, change, words):
    with pytest.raises(ArnoError, match=words):
        replay(rewrite(PACKAGED / "fedavg_mlp_uniform.npz", tmp_path / "bad.npz", change))


def test_a_kind_that_comes_later_is_refused_by_its_name(tmp_path):
    for kind in ("asynchronous", "robust", "attack"):

        def change(spec, arrays, kind=kind):
            spec.update(kind=kind, clock={"bytes_down": 4096})  # larger than any number that is replayed

        bad = rewrite(PACKAGED / "fedavg_mlp_uniform.npz", tmp_path / f"{kind}.npz", change)
        with pytest.raises(
            ArnoError, match=f"unknown kind of case '{kind}': the known names are balance, federated"
        ) as refused:
            replay(bad)
        assert "\n" not in str(refused.value)
    large = rewrite(PACKAGED / "fedavg_mlp_uniform.npz", tmp_path / "large.npz", lambda s, _: s.update(rounds=10**6))
    with pytest.raises(ArnoError, match="has the number 1,000,000, and numbers must be at most 256"):
        replay(large)


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "evil.npz"
    np.savez(path, spec=np.array([{"version": 1}], dtype=object))
    with pytest.raises(ArnoError, match="not a conformance case"):
        read(path, "serial")
