"""What cannot be exported, and folders that may not be replaced: said before anything is written."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest

import einsmith as es
from einsmith.cost.facts import Target
from einsmith.driver import registry
from einsmith.export import build, processors, write
from tests.export.common import batch, compiler, small


class Reversed:
    """A layout: the elements in reverse order."""

    def physical(self, x):
        return x[::-1]

    def logical(self, x, shape):
        return x[::-1]


def refused(kind, told, folder, what, *example, **options) -> None:
    with pytest.raises(kind, match=told):
        es.export(what, folder, *example, **options)
    assert not os.path.exists(folder) and not os.listdir(folder.parent)


def test_inexportable_programs_are_rejected(tmp_path, monkeypatch) -> None:
    compiler()
    out = tmp_path / "out"
    refused(es.ArgumentError, r"shapes of a batch are not known.*es.export\(step, folder, x, y\)", out, small())
    refused(es.ArgumentError, "shapes of the function's arguments are not known", out, lambda a: a * 2)
    refused(es.ShapeError, "a training step takes", out, small(), batch()[0])
    refused(es.ArgumentError, "neither a TrainStep nor a function", out, np.zeros(3))
    refused(
        es.ArgumentError, "target='6502' is not a target.*x86-64-v3.*aarch64", out, small(), *batch(), target="6502"
    )
    refused(es.ArgumentError, "name='Net work' must be small letters", out, small(), *batch(), name="Net work")
    refused(es.ArgumentError, "name='math' is the name of a header", out, small(), *batch(), name="math")
    refused(es.KindError, "threads=0", out, small(), *batch(), threads=0)
    refused(es.UnknownOptionError, "trheads", out, small(), *batch(), trheads=2)
    refused(es.CompileError, "compiler='no-such-cc'", out, small(), *batch(), compiler="no-such-cc")
    refused(es.CompileError, "failed with status 1", out, small(), *batch(), compiler="false")
    refused(es.GradientError, "float scalar", out, es.TrainStep(es.nn.Linear(5, 3), lambda o, y: o, es.optim.SGD(lr=1)),
            *batch())  # fmt: skip
    step = small()
    step.model.last.bias.store_as(Reversed())
    refused(es.ArgumentError, "last.bias has a layout of its own", out, step, *batch())
    monkeypatch.setenv("EINSMITH_CHECK", "1")
    refused(es.CheckError, "EINSMITH_CHECK", out, small(), *batch())


def test_without_a_compiler(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    told = "no C compiler for .* was found .*; install one .*gcc.*compiler=.*link=False"
    refused(es.CompileError, told, tmp_path / "out", small(), *batch())
    es.export(small(), tmp_path / "out", *batch(), link=False)
    assert sorted(os.listdir(tmp_path / "out")) == [
        "manifest.json", "small.c", "small.h", "small_kernels.o", "weights.safetensors"
    ]  # fmt: skip
    with pytest.raises(es.SaveError, match="has the source of a library, which must be compiled first"):
        es.load_library(tmp_path / "out")


def test_folders(tmp_path) -> None:
    compiler()
    f, a = (lambda a: a * 2), np.arange(3.0)
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("")
    for name in ("file", "other", "file/below"):
        for overwrite in (False, True):
            with pytest.raises(es.SaveError, match="not an export|cannot export"):
                es.export(f, tmp_path / name, a, overwrite=overwrite)
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]
    with pytest.raises(es.SaveError, match="no path|not the path"):
        es.export(f, None, a)
    (tmp_path / "empty").mkdir()
    es.export(f, tmp_path / "empty", a, name="fn")
    es.export(f, tmp_path / "deep" / "er" / "out", a, name="fn")
    with pytest.raises(es.SaveError, match="exists already; choose another folder, or pass overwrite=True"):
        es.export(f, tmp_path / "empty", a)
    before = (tmp_path / "empty" / "manifest.json").read_bytes()
    with pytest.raises(es.CompileError):
        es.export(f, tmp_path / "empty", a, overwrite=True, compiler="false")
    assert (tmp_path / "empty" / "manifest.json").read_bytes() == before
    library = es.load_library(tmp_path / "empty")
    others = []
    for factor in (3, 4):
        es.export(lambda a, factor=factor: a * factor, tmp_path / "empty", a, overwrite=True, name="fn")
        others.append(es.load_library(tmp_path / "empty"))
    for factor, loaded in enumerate((library, *others), start=2):  # what is loaded stays
        np.testing.assert_array_equal(loaded(a), a * factor)
    shutil.copy(tmp_path / "empty" / "manifest.json", tmp_path / "deep" / "er" / "out")
    with pytest.raises(es.SaveError, match="not the library that manifest.json describes"):
        es.load_library(tmp_path / "deep" / "er" / "out")
    assert sorted(os.listdir(tmp_path)) == ["deep", "empty", "file", "other"]


def test_an_export_that_is_stopped_leaves_nothing(tmp_path, monkeypatch) -> None:
    compiler()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "link", stop)
    with pytest.raises(KeyboardInterrupt):
        es.export(small(), tmp_path / "out", *batch())
    assert not os.listdir(tmp_path)


def test_folders_that_are_no_export_are_not_loaded(tmp_path) -> None:
    compiler()
    es.export(lambda a: a * 2, tmp_path / "out", np.arange(3.0), name="fn")
    manifest = tmp_path / "out" / "manifest.json"
    good = json.loads(manifest.read_text())
    for text in ("", "[]", "[" * 100_000, "{}", json.dumps(good | {"name": 3}), json.dumps(good | {"functions": 3})):
        manifest.write_text(text)
        with pytest.raises(es.SaveError, match="not an exported library"):
            es.load_library(tmp_path / "out")
    with pytest.raises(es.SaveError, match="not an exported library"):
        es.load_library(tmp_path / "none")
    assert not write.is_export(tmp_path / "none")


def test_a_processor_that_lacks_something_is_refused(tmp_path, monkeypatch) -> None:
    """A library that needs what no processor has, as far as a library can ask."""
    compiler()
    mine = processors.of_target(registry.DEFAULT.target(1))
    never = processors.Feature("a bit of nothing", 0x80000001, 0, 3, 10)
    monkeypatch.setattr(write, "of_target", lambda _: replace(mine, features=(*mine.features, never)))
    es.export(small(), tmp_path / "out", *batch())
    with pytest.raises(es.LibraryError, match="lacks a bit of nothing, which the library is compiled for") as found:
        es.load_library(tmp_path / "out")
    assert found.value.code == 1000 + len(mine.features)


def test_features_of_targets() -> None:
    def of(features: str, triple: str = "x86_64-unknown-linux-gnu") -> processors.Processor:
        return processors.of_target(Target(cpu="some", features=features, triple=triple))

    found = of("+64bit,+sse2,+avx2,+avx,-avx512f,+fma,+rdrnd")
    assert [f.name for f in found.features] == ["avx2", "avx", "fma", "a system that saves the registers of AVX"]
    assert found.target is None and of("+avx,+avx512f").features[-1].leaf == 0xE6 and not of("+sse2").features
    unknown = of("+bmi,+holodeck")
    assert [f.name for f in unknown.features] == ["bmi"] and unknown.target is not None
    assert unknown.target.features == "+bmi,+holodeck,-holodeck"
    tiles = Target(cpu="some", features="+avx,+amx-tile", triple="x86_64-unknown-linux-gnu", tiles=(("bf16", 9.0),))
    with_tiles = processors.of_target(tiles).target
    assert with_tiles is not None and not with_tiles.tiles and with_tiles.features == "+avx,+amx-tile"
    assert [f.name for f in processors.find_processor("x86-64-v2", 2).features][-1] == "crc32"
    assert (
        len(processors.find_processor("x86-64-v4", 2).features)
        > len(processors.find_processor("x86-64-v3", 2).features)
        > 10
    )
    with pytest.raises(es.CompileError, match="cannot be exported for riscv64.*choose a target"):
        of("", "riscv64-unknown-linux-gnu")


def test_a_users_own_files_stay_in_a_replaced_export(tmp_path) -> None:
    place, x, y = tmp_path / "out", *batch()
    es.export(small(), place, x, y, link=False, name="first")
    (place / "trained.safetensors").write_text("days of training")
    (place / "runs").mkdir()
    (place / "runs" / "log").write_text("log")
    (place / "link").symlink_to("runs/log")
    (place / "second.h").write_text("has the name of a file to be written")
    es.export(small(), place, x, y, link=False, name="second", overwrite=True)
    own = {"trained.safetensors", "runs", "link"}
    assert set(os.listdir(place)) == own | {"second.h", "second.c", "second_kernels.o", write.MANIFEST, write.WEIGHTS}
    assert (place / "trained.safetensors").read_text() == "days of training"
    assert os.readlink(place / "link") == "runs/log" and (place / "link").read_text() == "log"
    assert "second_create" in (place / "second.h").read_text()
    es.export(small(), place, x, y, link=False, name="third", overwrite=True)
    assert set(os.listdir(place)) == own | {"third.h", "third.c", "third_kernels.o", write.MANIFEST, write.WEIGHTS}
