"""Extras: whatever of an extra is missing, the message names the extra."""

import sys

import pytest

from contextcaps.extras import import_extra


@pytest.fixture(autouse=True)
def forgotten():
    import_extra.cache_clear()
    yield
    import_extra.cache_clear()


def test_a_missing_package(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"^curves: needs the extra 'train': pip install 'contextcaps\[train\]'$"):
        import_extra("matplotlib", "train", "curves")


def test_a_package_that_another_one_needs(tmp_path, monkeypatch) -> None:
    """As torch.utils.tensorboard needs tensorboard, which the same extra brings."""
    (tmp_path / "outer_of_extra.py").write_text("import inner_of_extra\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        import_extra("outer_of_extra", "train", "curves")
    assert str(caught.value) == (
        "curves: outer_of_extra, of the extra 'train', could not be imported: No module named 'inner_of_extra'; "
        "try pip install 'contextcaps[train]'"
    )


def test_a_corpus_without_ray(monkeypatch) -> None:
    from contextcaps.corpus import cluster

    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"^--engine ray: needs the extra 'ray': pip install 'contextcaps\[ray\]'$"):
        cluster.require_ray()
