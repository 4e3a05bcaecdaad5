"""Tagging from Python: every kind of input, order, thresholds, bad images, and what may be loaded."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import contextcaps
from contextcaps.data import DataError
from contextcaps.models import hub
from contextcaps.models.files import ModelFileError
from contextcaps.models.score_bands import ScoreBand, ScoreBands
from contextcaps.models.trained import Trained
from contextcaps.tagging import Tagger, load

CLASSES = ("sky", "sea", "tree", "road", "car")
THRESHOLDS = (0.9, 0.05, 0.125, 0.0, 1.0)


@pytest.fixture(scope="module")
def loaded(model) -> Tagger:
    return load(model, "cpu")


@pytest.fixture(scope="module")
def expected(network, pictures) -> torch.Tensor:
    """[7, 5]: the network's scores, one picture at a time, without any of the code under test."""
    with torch.no_grad():
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
        return torch.cat([network(image[None]).scores for image in images])


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def _written_file(content: bytes) -> io.BytesIO:
    """A file in memory as it stands after it was written."""
    file = io.BytesIO()
    file.write(content)
    return file


def _kinds(pixels: np.ndarray, folder: Path) -> dict:
    """One picture in every form that is taken."""
    (folder / "picture.png").write_bytes(_png(pixels))
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return {
        "str": str(folder / "picture.png"),
        "path": folder / "picture.png",
        "bytes": _png(pixels),
        "bytearray": bytearray(_png(pixels)),
        "file": io.BytesIO(_png(pixels)),
        "file-at-its-end": _written_file(_png(pixels)),
        "file-open": (folder / "picture.png").open("rb"),
        "pil": Image.fromarray(pixels),
        "pil-open": Image.open(folder / "picture.png"),
        "array": pixels,
        "array-strided": np.repeat(pixels, 2, 1)[:, ::2],
        "tensor-bytes": tensor,
        "tensor-floats": tensor.float() / 255,
        "tensor-double": tensor.double() / 255,
        "array-of-one": pixels[None],
        "tensor-of-one": tensor[None],
    }


def test_every_kind_of_input_gives_the_same_scores_alone_and_among_others(loaded, pictures, expected, tmp_path) -> None:
    kinds = _kinds(pictures[0], tmp_path)
    for name, image in kinds.items():
        (tagging,) = loaded.tag(image)
        torch.testing.assert_close(
            torch.from_numpy(tagging.scores), expected[0], msg=lambda text, name=name: f"{name}: {text}"
        )
        assert tagging.image == (str(tmp_path / "picture.png") if name in ("str", "path") else 0)
    several = [image for name, image in kinds.items() if not name.endswith("of-one")]
    taggings = loaded.tag(image for image in several)
    assert [tagging.image for tagging in taggings][2:] == list(range(2, len(several)))
    for tagging in taggings:
        torch.testing.assert_close(torch.from_numpy(tagging.scores), expected[0])


@pytest.mark.parametrize("backbone", ["small", "lite0"])
def test_a_network_that_has_gone_to_another_precision_tags_on(backbone, pictures) -> None:
    torch.manual_seed(0)
    tagger = Tagger(contextcaps.create_model("gap", 5, 32, backbone, pretrained_file=None), device="cpu")
    expected = torch.stack([torch.from_numpy(tagging.scores) for tagging in tagger.tag(pictures)])
    for change, atol in ((torch.nn.Module.bfloat16, 2e-2), (torch.nn.Module.double, 2e-2)):
        change(tagger.network)
        scores = torch.stack([torch.from_numpy(tagging.scores) for tagging in tagger.tag(pictures)])
        torch.testing.assert_close(scores, expected, atol=atol, rtol=0)
        assert not torch.equal(scores, expected)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_stack_of_images_is_many(kind, loaded, pictures, expected) -> None:
    stack = pictures if kind == "array" else torch.from_numpy(pictures).permute(0, 3, 1, 2)
    taggings = loaded.tag(stack)
    assert [tagging.image for tagging in taggings] == list(range(7))
    torch.testing.assert_close(torch.stack([torch.from_numpy(tagging.scores) for tagging in taggings]), expected)


@given(
    order=st.lists(st.integers(0, 6), max_size=20),
    batch_size=st.integers(1, 9),
    workers=st.integers(1, 3),
)
def test_results_are_in_the_order_of_the_images_whatever_the_batches(
    loaded, pictures, expected, order, batch_size, workers
) -> None:
    taggings = loaded.tag([pictures[index] for index in order], batch_size=batch_size, workers=workers)
    assert [tagging.image for tagging in taggings] == list(range(len(order)))
    for tagging, index in zip(taggings, order, strict=True):
        torch.testing.assert_close(torch.from_numpy(tagging.scores), expected[index])


def test_the_same_pillow_image_twice_is_read_once_at_a_time(loaded, tmp_path, pictures, expected) -> None:
    (tmp_path / "picture.png").write_bytes(_png(pictures[2]))
    for tagging in loaded.tag([Image.open(tmp_path / "picture.png")] * 8, workers=4):
        torch.testing.assert_close(torch.from_numpy(tagging.scores), expected[2])


def test_other_sizes_are_squashed_and_pillow_images_turned_upright(loaded, pictures) -> None:
    large = pictures[0].repeat(3, 0).repeat(2, 1)  # [96, 64, 3]
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.fromarray(large).save(file, "png", exif=exif)
    from_bytes, from_pillow, turned = loaded.tag([file.getvalue(), Image.open(file), np.rot90(large, -1)])
    torch.testing.assert_close(torch.from_numpy(from_pillow.scores), torch.from_numpy(from_bytes.scores))
    torch.testing.assert_close(
        torch.from_numpy(from_bytes.scores), torch.from_numpy(turned.scores), atol=2e-3, rtol=0
    )  # resized before it is turned


def test_tags_are_the_classes_from_their_own_thresholds_on_best_first(loaded, pictures, expected) -> None:
    for tagging, scores in zip(loaded.tag(pictures), expected.tolist(), strict=True):
        present = [j for j in range(5) if scores[j] >= THRESHOLDS[j]]
        present.sort(key=lambda j: -scores[j])
        assert [tag.name for tag in tagging.tags] == [CLASSES[j] for j in present]
        assert [tag.threshold for tag in tagging.tags] == [THRESHOLDS[j] for j in present]
        assert [tag.score for tag in tagging.tags] == pytest.approx([scores[j] for j in present], rel=1e-4)
        assert "road" in {tag.name for tag in tagging.tags}
        assert not {"sky", "car"} & {tag.name for tag in tagging.tags}


@given(threshold=st.floats(0, 0.3), top_k=st.none() | st.integers(1, 6))
def test_one_threshold_for_all_and_top_k(loaded, pictures, threshold, top_k) -> None:
    for tagging in loaded.tag(pictures[:2], threshold=threshold, top_k=top_k):
        scores = tagging.scores.tolist()
        above = sorted((score for score in scores if score >= np.float32(threshold)), reverse=True)
        assert [tag.score for tag in tagging.tags] == above[:top_k]


def test_threshold_0_and_top_k_give_exactly_the_k_best(loaded, pictures) -> None:
    for tagging in loaded.tag(pictures, threshold=0, top_k=3):
        assert [tag.score for tag in tagging.tags] == sorted(tagging.scores.tolist(), reverse=True)[:3]


def test_a_score_counts_from_the_threshold_on_not_above_it(loaded, pictures) -> None:
    (tagging,) = loaded.tag(pictures[0], threshold=0, top_k=1)
    best = tagging.tags[0].score
    assert len(loaded.tag(pictures[0], threshold=best)[0].tags) == 1
    assert loaded.tag(pictures[0], threshold=float(np.nextafter(np.float32(best), np.float32(1))))[0].tags == ()


def test_bad_images_are_reported_where_they_stand(loaded, album, pictures, expected) -> None:
    names = sorted(path for path in album.iterdir() if path.suffix != ".txt")
    names.insert(2, album / "missing.png")
    names.insert(4, album)
    for batch_size in (1, 2, 64):
        taggings = loaded.tag(names, batch_size=batch_size)
        assert [tagging.image for tagging in taggings] == [str(name) for name in names]
        errors = {Path(tagging.image).name: tagging.error for tagging in taggings if tagging.error is not None}
        assert errors.keys() == {"1-cut.jpg", "2-text.png", "3-empty.webp", "missing.png", "album"}
        assert errors["missing.png"] == "there is no such file"
        assert errors["1-cut.jpg"].startswith("damaged or truncated image")
        assert "not an image but text" in errors["2-text.png"]
        for tagging in taggings:
            if tagging.error is None:
                torch.testing.assert_close(torch.from_numpy(tagging.scores), expected[int(Path(tagging.image).stem)])
            else:
                assert (tagging.tags, tagging.scores) == ((), None)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"", "empty file"),
        (io.BytesIO(b""), "empty file"),
        (io.BytesIO(b"GIF8 and no more"), "damaged or truncated image"),
        (Image.new("F", (8, 8)), "pixels of 32 bits"),
    ],
    ids=["no-bytes", "empty-file", "damaged-file", "pil-float"],
)
def test_images_that_cannot_be_read_are_reported(image, message, loaded, pictures) -> None:
    good, bad, other = loaded.tag([pictures[0], image, pictures[1]])
    assert message in bad.error
    assert good.error is None
    assert other.error is None
    assert loaded.tag(image)[0].error == bad.error


def test_a_folder_says_how_its_images_are_found(loaded, album) -> None:
    (tagging,) = loaded.tag(album)
    assert tagging.image == str(album)
    assert tagging.error == "a folder, not an image; contextcaps.tagging.find_images lists the images in it"


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (np.zeros((8, 8, 3)), TypeError, "got [8, 8, 3] of float64; for values from 0 to 1: (255 * image).round()"),
        (np.zeros((8, 8, 3), np.int64), TypeError, "expected an array [H, W, 3] of uint8, got [8, 8, 3] of int64"),
        (np.zeros((8, 8), np.uint8), ValueError, "got [8, 8] of uint8; for grey: PIL.Image.fromarray"),
        (np.zeros((8, 8, 4), np.uint8), ValueError, "got [8, 8, 4] of uint8; without transparency: image[..., :3]"),
        (np.zeros((3, 8, 8), np.uint8), ValueError, "channels come last: image.transpose(1, 2, 0)"),
        (np.zeros((0, 8, 3), np.uint8), ValueError, "got [0, 8, 3] of uint8"),
        (torch.zeros(4, 8, 8), ValueError, "a tensor [3, H, W], or [1, H, W] for grey, got [4, 8, 8] of torch.float32"),
        (torch.zeros(8, 8, 3), ValueError, "channels come first: image.permute(2, 0, 1)"),
        (torch.full((3, 8, 8), 2.0), ValueError, "expected values from 0 to 1, not normalised (the network does that)"),
        (torch.full((3, 8, 8), float("nan")), ValueError, "got nan to nan"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), TypeError, "of torch.int64"),
        (io.StringIO("text"), TypeError, "expected a file opened for bytes, open(path, 'rb')"),
        (None, TypeError, "got NoneType"),
        (3.5, TypeError, "got float"),
    ],
    ids=[
        *("float-array", "int-array", "grey-array", "four-channels", "channels-first", "empty-array"),
        *("four-planes", "channels-last", "normalised", "nan", "int64", "text-file", "none", "number"),
    ],
)
def test_mistakes_of_the_program_raise_alone_and_among_others(image, error, message, loaded, pictures) -> None:
    for given_images in (image, [pictures[0], image]):
        with pytest.raises(error) as caught:
            loaded.tag(given_images)
        assert message in str(caught.value)
        assert str(caught.value).startswith("images: expected ")


def test_an_array_or_generator_of_paths_is_many(loaded, album, expected) -> None:
    paths = [str(album / "0.png"), str(album / "1.png")]
    for several in (np.array(paths), np.array(paths, dtype=object), (path for path in paths)):
        taggings = loaded.tag(several)
        assert [tagging.image for tagging in taggings] == paths
        torch.testing.assert_close(torch.from_numpy(taggings[1].scores), expected[1])


def test_thresholds_of_some_classes(loaded, pictures) -> None:
    changed = loaded.tag(pictures[0], threshold={"sky": 0, "road": np.float32(1.0)})[0]
    assert {tag.name: tag.threshold for tag in changed.tags}.get("sky") == 0
    assert "road" not in {tag.name for tag in changed.tags}
    others = {tag for tag in loaded.tag(pictures[0])[0].tags if tag.name not in ("sky", "road")}
    assert others == {tag for tag in changed.tags if tag.name not in ("sky", "road")}
    assert loaded.tag(pictures[0], threshold={}) == loaded.tag(pictures[0])
    assert loaded.thresholds == THRESHOLDS


def test_a_bad_image_stops_where_that_is_asked_for(loaded, album) -> None:
    with pytest.raises(DataError, match=r"1-cut\.jpg: damaged or truncated image"):
        loaded.tag([album / "0.png", album / "1-cut.jpg"], on_bad="stop")
    with pytest.raises(DataError, match="image 1: empty file"):
        loaded.tag([np.zeros((4, 4, 3), np.uint8), b""], on_bad="stop")


def test_a_stream_reads_only_a_little_ahead(loaded, pictures) -> None:
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield pictures[len(taken) % 7]

    stream = loaded.tag_stream(endless(), batch_size=4, workers=1)
    assert [next(stream).image for _ in range(10)] == list(range(10))
    assert len(taken) <= 12 + 4 + 1
    stream.close()


def test_no_images_are_no_results(loaded) -> None:
    assert loaded.tag([]) == []


@pytest.mark.parametrize(
    ("images", "options", "error", "message"),
    [
        (5, {}, TypeError, "images: expected a path, bytes"),
        (None, {}, TypeError, "got NoneType"),
        ({"a.jpg": 1}, {}, TypeError, "got dict"),
        ([["a.jpg"]], {}, TypeError, "got list among them; a list inside the list is not looked into"),
        ([], {"threshold": 1.5}, ValueError, "threshold: expected a score from 0 to 1, got 1.5"),
        ([], {"threshold": float("nan")}, ValueError, "threshold"),
        ([], {"threshold": "0.5"}, TypeError, "threshold: expected a score from 0 to 1, got '0.5'"),
        ([], {"threshold": [0.5] * 5}, TypeError, "threshold: expected a score from 0 to 1"),
        ([], {"threshold": {"see": 0.5}}, ValueError, "threshold: the model has no class 'see'; did you mean 'sea'?"),
        ([], {"threshold": {"zebra": 0.5}}, ValueError, "no class 'zebra'; it knows sky, sea, tree, road, car"),
        ([], {"threshold": {"sea": 50}}, ValueError, "threshold: sea: expected a score from 0 to 1, got 50"),
        ([], {"threshold": {"sea": None}}, TypeError, "threshold: sea: expected a score from 0 to 1, got None"),
        ([], {"top_k": 0}, ValueError, "top_k: expected at least 1, got 0"),
        ([], {"top_k": 2.5}, TypeError, "top_k: expected a whole number, got 2.5"),
        ([], {"batch_size": 0}, ValueError, "batch_size: expected at least 1"),
        ([], {"workers": -1}, ValueError, "workers: expected at least 1"),
        ([], {"on_bad": "skip"}, ValueError, "on_bad: expected 'report' or 'stop'"),
        ([], {"known": ["sea"]}, TypeError, "known: expected class → True or False"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_misuse_is_a_clear_error(images, options, error, message, loaded) -> None:
    with pytest.raises(error) as caught:
        loaded.tag(images, **options)
    assert message in str(caught.value)


def test_a_grey_network_takes_colour_and_grey(pictures) -> None:
    torch.manual_seed(1)
    network = contextcaps.create_model("capsnet", 4, 32, "small", capsules={"types": 2}, in_channels=1)
    grey = Tagger(network, device="cpu")
    luma = (pictures[0] @ np.array([0.299, 0.587, 0.114])).astype(np.float32) / 255  # [H, W]
    with torch.no_grad():
        expected = network(torch.from_numpy(luma)[None, None]).scores[0]
    (tagging,) = grey.tag(pictures[0])
    torch.testing.assert_close(torch.from_numpy(tagging.scores), expected, atol=1e-5, rtol=1e-4)
    one, three = grey.tag([torch.full((1, 32, 32), 0.4), torch.full((3, 32, 32), 0.4)])
    torch.testing.assert_close(torch.from_numpy(one.scores), torch.from_numpy(three.scores))
    assert {tag.name for tag in grey.tag(pictures[0], threshold=0)[0].tags} == {"0", "1", "2", "3"}


def test_scores_that_are_no_numbers_are_an_error_not_an_empty_result(network, pictures, model) -> None:
    broken = load(model, "cpu")
    with torch.no_grad():
        for weight in broken.network.parameters():
            weight.fill_(float("nan"))
    (tagging,) = broken.tag(pictures[0])
    assert "are its weights damaged?" in tagging.error


def test_a_run_and_its_model_are_the_same(model, pictures) -> None:
    for path in (model, str(model), model.parent, str(model.parent)):
        loaded = load(path)
        assert loaded.classes == CLASSES
        assert loaded.thresholds == THRESHOLDS
        assert loaded.trained.seed == 7
    assert loaded.tag(pictures[0]) == load(model).tag(pictures[0])


def test_a_model_without_thresholds_takes_one_half(network, tmp_path) -> None:
    network.save_pretrained(tmp_path / "bare")
    bare = load(tmp_path / "bare")
    assert bare.trained is None
    assert bare.thresholds == (0.5,) * 5


def test_what_is_no_model_is_refused_with_what_was_expected(tmp_path, model) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "file.ckpt").write_text("")
    shutil.copytree(model, tmp_path / "half")
    (tmp_path / "half" / "model.safetensors").unlink()
    for name, message in {
        "empty": "neither a run nor a model; expected",
        "run": "a run that has not exported a model yet",
        "file.ckpt": "a file; expected the folder of a run",
        "half": "model.safetensors: no such file",
        "nowhere": "no such folder",
    }.items():
        with pytest.raises(ModelFileError, match=message):
            load(tmp_path / name)


@pytest.mark.parametrize("device", ["tpu", "meta", "cuda:99", 7.5, "cpu:x"])
def test_a_wrong_device_is_refused(device, model) -> None:
    with pytest.raises(ValueError, match="device: "):
        load(model, device)


def test_a_model_from_the_hub_brings_its_thresholds(model, network, monkeypatch) -> None:
    def download(name: str, file: str) -> str:
        assert name == "somebody/scenes"
        return str(model / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    assert load("hf:somebody/scenes").thresholds == THRESHOLDS

    def without(name: str, file: str) -> str:
        if file == "trained.json":
            raise EntryNotFoundError("404")
        return str(model / file)

    monkeypatch.setattr(hub, "hf_hub_download", without)
    assert load("hf:somebody/scenes").trained is None

    def offline(name: str, file: str) -> str:
        if file == "trained.json":
            raise LocalEntryNotFoundError("no connection")
        return str(model / file)

    monkeypatch.setattr(hub, "hf_hub_download", offline)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: object())  # known not to exist
    assert load("hf:somebody/scenes").trained is None
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    with pytest.raises(ModelFileError, match=r"somebody/scenes: trained\.json is not to be had: no connection"):
        load("hf:somebody/scenes")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("runs/frist", r"runs/frist: no such folder; did you mean runs/first\?$"),
        ("frist", r"frist: no such folder; did you mean runs/first\?$"),
        ("somebody/scenes", r"somebody/scenes: no such folder; hf:somebody/scenes would look for it on the Hugging"),
        ("/nowhere/at/all", r"/nowhere/at/all: no such folder; expected that of a run or of a model"),
        ("hf:", "hf:: expected a name on the Hugging Face Hub such as hf:owner/name"),
        ("hf:../x", "expected a name on the Hugging Face Hub"),
    ],
)
def test_a_misspelt_folder_is_not_looked_up_on_the_hub(name, message, shipped, tmp_path, monkeypatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(hub, "hf_hub_download", lambda *words, **options: asked.append(words))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    with pytest.raises(ModelFileError, match=message) as refusal:
        load(name)
    assert not asked
    assert "\n" not in str(refusal.value)


def test_what_lies_around_a_model_leads_to_it(model, tmp_path) -> None:
    shutil.copytree(model, tmp_path / "runs" / "first" / "model")
    (tmp_path / "beach.jpg").write_bytes(b"")
    for place, message in (
        ("runs", f"runs: holds runs; expected one of them, such as {tmp_path / 'runs' / 'first'}"),
        ("runs/first/model/config.json", f"a file; expected the folder .* did you mean {tmp_path / 'runs' / 'first'}"),
        ("beach.jpg", "beach.jpg: a file; expected the folder of a run or of a model$"),
    ):
        with pytest.raises(ModelFileError, match=message):
            load(tmp_path / place)


def test_a_model_that_was_never_trained_says_so(network, model, tmp_path, capsys) -> None:
    network.save_pretrained(tmp_path / "fresh")
    load(tmp_path / "fresh", "cpu")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {tmp_path / 'fresh'}: nothing says that this model was ever trained")
    load(model, "cpu")
    assert capsys.readouterr().err == ""


def test_thresholds_of_other_classes_are_refused(model, tmp_path) -> None:
    shutil.copytree(model, tmp_path / "mixed")
    other = contextcaps.ModelConfig(2, class_names=("a", "b"))
    Trained((0.1, 0.2), (0.1, 0.2), 0, "x", 1).write(tmp_path / "mixed", other)
    with pytest.raises(ModelFileError, match="its classes are not those of the network"):
        load(tmp_path / "mixed")


BANDS = ScoreBands((ScoreBand(0.2, 50, 40), ScoreBand(0.05, 100, 30), ScoreBand(0.0, 850, 30)))


@pytest.fixture(scope="module")
def knowing(network, tmp_path_factory):
    """A tagger of a model that knows what its scores were worth."""
    folder = tmp_path_factory.mktemp("knowing")
    network.save_pretrained(folder)
    trained = Trained(THRESHOLDS, (0.1,) * 5, seed=7, data="scenes", epoch=1, score_bands=BANDS)
    trained.write(folder, network.config)
    return contextcaps.load(folder)


@pytest.mark.parametrize(
    ("wanted", "threshold"),
    [
        ({"precision_at_least": 0.8}, 0.2),
        ({"precision_at_least": 0.4}, 0.05),
        ({"recall_at_least": 0.4}, 0.2),
        ({"recall_at_least": 0.7}, 0.05),
        ({"threshold": 0.3}, 0.3),
    ],
    ids=str,
)
def test_thresholds_by_precision_or_recall(knowing, pictures, wanted, threshold) -> None:
    assert knowing.choose_thresholds(**wanted) == (threshold,) * 5
    for tagging in knowing.tag(pictures, **wanted):
        assert len(tagging.tags) == sum(score >= np.float32(threshold) for score in tagging.scores.tolist())
        assert all(tag.threshold == threshold for tag in tagging.tags)


def test_without_a_wish_the_thresholds_are_the_models_own(knowing) -> None:
    assert knowing.choose_thresholds() == THRESHOLDS


def test_a_tag_has_the_precision_of_its_score(knowing, loaded, pictures) -> None:
    found = [tag for tagging in knowing.tag(pictures, threshold=0) for tag in tagging.tags]
    assert {tag.precision for tag in found} <= {40 / 50, 30 / 100, 30 / 850}
    assert all(tag.precision == BANDS.precision(tag.score) for tag in found)
    assert all(tag.precision is None for tag in loaded.tag(pictures[0], threshold=0)[0].tags)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"precision_at_least": 0.9}, "no threshold reached 0.9 on the validation images; the most was 0.800"),
        ({"recall_at_least": 0.8}, "no threshold reached 0.8 on the validation images; the most was 0.700"),
        ({"precision_at_least": 80}, "expected a share above 0 and at most 1, such as 0.8, got 80"),
        ({"recall_at_least": 0.0}, "recall_at_least: expected a share above 0"),
        ({"recall_at_least": float("nan")}, "recall_at_least: expected a share above 0"),
        ({"precision_at_least": 0.5, "threshold": 0.5}, "precision_at_least: chooses thresholds as threshold does"),
        ({"precision_at_least": 0.5, "recall_at_least": 0.5}, "recall_at_least: chooses .* as precision_at_least does"),
    ],
    ids=str,
)
def test_a_wish_that_cannot_be_met_is_refused(knowing, pictures, wanted, message) -> None:
    with pytest.raises(ValueError, match=message):
        knowing.tag_stream(pictures, **wanted)


@pytest.mark.parametrize("wanted", ["precision_at_least", "recall_at_least"])
@pytest.mark.parametrize("share", ["0.5", True])
def test_a_share_of_another_type_is_a_mistake_of_the_program(knowing, pictures, wanted, share) -> None:
    with pytest.raises(
        TypeError, match=f"{wanted}: expected a share above 0 and at most 1, such as 0.8, got {share!r}"
    ):
        knowing.tag_stream(pictures, **{wanted: share})


def test_an_empty_name(knowing) -> None:
    assert knowing.tag("")[0].error == "an empty name"


@pytest.mark.parametrize("wanted", ["precision_at_least", "recall_at_least"])
def test_a_model_that_does_not_know_its_precision_says_so(loaded, pictures, wanted) -> None:
    with pytest.raises(ValueError, match=f"{wanted}: this model does not know what its scores were worth"):
        loaded.tag(pictures, **{wanted: 0.8})


def test_a_tagger_gives_the_scores_of_the_network_that_it_folds(pictures) -> None:
    torch.manual_seed(0)
    network = contextcaps.create_model("contextcaps", 5, 32, "lite0", pretrained=False, capsules={"types": 2})
    images = torch.from_numpy(pictures).permute(0, 3, 1, 2)
    network.train()
    for _ in range(3):
        network(images)  # so that the batch normalisations do something
    tagger = Tagger(network, device="cpu")
    with torch.inference_mode():
        expected = network(images).scores
    torch.testing.assert_close(torch.from_numpy(tagger.scores(images.numpy())), expected, rtol=0, atol=1e-5)
    assert any(isinstance(module, torch.nn.BatchNorm2d) for module in tagger.network.modules())
