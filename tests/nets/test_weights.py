import os
import pickle
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fedtailor.errors import FedTailorError
from fedtailor.nets import Task, build_net, nets
from fedtailor.nets.weights import load_weights


def net(seed: int, classes: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, classes))
    module(torch.randn(5, 3, 8, 8))
    return module


def save(state: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path


def same(a: nn.Module, b: nn.Module, without: str = "-") -> bool:
    other = b.state_dict()
    return all(torch.equal(t, other[n]) for n, t in a.state_dict().items() if not n.startswith(without))


@pytest.fixture(params=["w.safetensors", "w.pth", "w.pt"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def test_round_trip(path: Path) -> None:
    source, target = net(1), net(2)
    assert not same(source, target)
    load_weights(target, save(source.state_dict(), path))
    assert same(source, target)


def test_half_precision_is_converted(path: Path) -> None:
    source, target = net(1), net(2)
    load_weights(
        target, save({n: t.half() if t.is_floating_point() else t for n, t in source.state_dict().items()}, path)
    )
    assert {t.dtype for t in target.parameters()} == {torch.float32}
    assert torch.equal(target[0].weight, source[0].weight.half().float())
    assert torch.equal(target[1].running_mean, source[1].running_mean.half().float())


def test_a_head_for_other_classes_or_no_head_leaves_the_head_alone(path: Path) -> None:
    source, fresh = net(1, classes=7), net(2)
    for state in (source.state_dict(), {n: t for n, t in source.state_dict().items() if not n.startswith("3.")}):
        target = net(2)
        load_weights(target, save(state, path))
        assert same(target, source, without="3.")
        assert torch.equal(target[3].weight, fresh[3].weight)
        assert torch.equal(target[3].bias, fresh[3].bias)


def test_half_a_head_is_not_loaded(path: Path) -> None:
    state = net(1).state_dict()
    del state["3.bias"]
    target = net(2)
    load_weights(target, save(state, path))
    assert torch.equal(target[3].weight, net(2)[3].weight)


def test_counters_may_be_missing_but_nothing_else(path: Path) -> None:
    state = net(1).state_dict()
    del state["1.num_batches_tracked"]
    load_weights(net(2), save(state, path))
    del state["1.running_var"]
    with pytest.raises(FedTailorError, match=r"missing: 1\.running_var"):
        load_weights(net(2), save(state, path))


def test_misfits_are_named_and_nothing_is_loaded(path: Path) -> None:
    state = net(1).state_dict()
    state["0.weight"] = torch.zeros(4, 1, 3, 3)
    state["extra"] = torch.zeros(1)
    target = net(2)
    with pytest.raises(FedTailorError) as refused:
        load_weights(target, save(state, path))
    assert "0.weight is (4, 1, 3, 3) in the file and (4, 3, 3, 3) in the net" in str(refused.value)
    assert "unexpected: extra" in str(refused.value)
    assert same(target, net(2))


def test_the_list_of_names_is_kept_short(path: Path) -> None:
    state = net(1).state_dict() | {f"extra{i}": torch.zeros(1) for i in range(9)}
    with pytest.raises(FedTailorError, match="extra4 and 4 more"):
        load_weights(net(2), save(state, path))


class Hostile:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_file_is_not_run(how: str, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "w.pth"
    if how == "torch":
        torch.save(net(1).state_dict() | {"extra": Hostile(trace)}, path)
    else:
        path.write_bytes(pickle.dumps(Hostile(trace)))
    with pytest.raises(FedTailorError, match="never loaded") as refused:
        load_weights(net(2), path)
    assert "weights_only" not in str(refused.value), "torch's advice to load unsafely must not reach the user"
    assert not trace.exists()


def test_damaged_missing_and_foreign_files_are_refused(tmp_path: Path, path: Path) -> None:
    path.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not a header....")
    with pytest.raises(FedTailorError, match="damaged"):
        load_weights(net(1), path)
    with pytest.raises(FedTailorError, match="does not exist"):
        load_weights(net(1), tmp_path / "nowhere.pth")
    (tmp_path / "w.npz").touch()
    with pytest.raises(FedTailorError, match=r"expected \.safetensors"):
        load_weights(net(1), tmp_path / "w.npz")


def test_a_checkpoint_that_is_not_a_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model": net(1).state_dict()}, tmp_path / "c.pth")
    with pytest.raises(FedTailorError, match=r"not a state_dict.*epoch, model"):
        load_weights(net(1), tmp_path / "c.pth")
    torch.save([torch.zeros(1)], tmp_path / "l.pth")
    with pytest.raises(FedTailorError, match=r"it holds list"):
        load_weights(net(1), tmp_path / "l.pth")


def test_resnet_starts_from_a_file(path: Path) -> None:
    pretrained = nets.build("resnet18", {}).build(Task((3, 16, 16), 1000))
    body = {n: t.half() for n, t in pretrained.state_dict().items() if not n.startswith("fc") and "num_" not in n}
    save(body, path)
    resnet = nets.build("resnet18", {"weights": str(path)})
    loaded = build_net(resnet, Task((3, 16, 16), 5))
    assert torch.equal(loaded.embedder.layer4[1].conv2.weight, pretrained.layer4[1].conv2.weight.half().float())
    with pytest.raises(FedTailorError, match=r"conv1\.weight is \(64, 3, 7, 7\) in the file and \(64, 1, 7, 7\)"):
        resnet.build(Task((1, 16, 16), 5))
    with pytest.raises(FedTailorError, match=r"unexpected: bn1\.running_mean"):
        nets.build("resnet18", {"weights": str(path), "norm": "group"}).build(Task((3, 16, 16), 5))


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_weights_that_are_no_numbers_are_refused(tmp_path, ending):
    broken = nn.Linear(3, 2).state_dict()
    broken["weight"][0, 0] = float("nan")
    path = tmp_path / f"w{ending}"
    safetensors.torch.save_file(broken, path) if ending == ".safetensors" else torch.save(broken, path)
    with pytest.raises(FedTailorError, match=rf"w{ending}' holds NaN or infinite values in weight"):
        load_weights(nn.Linear(3, 2), path)


def test_an_archive_of_weights_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("fedtailor.limits.GB", 10**6)
    with zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(5 * 10**6))
    with pytest.raises(FedTailorError, match=r"w\.pth': 5\.0 GB where the limit is 4 GB"):
        load_weights(nn.Linear(3, 2), tmp_path / "w.pth")
