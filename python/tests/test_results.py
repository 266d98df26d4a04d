"""`bench`, `replay`, `export` and `compare`: the command's answers as objects."""

from __future__ import annotations

import dataclasses
import json
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import typing
from pathlib import Path

import pytest

import plimsoll
from plimsoll import command, records, results

ROOT = Path(__file__).resolve().parents[2]
TRAINING = ROOT / "docs/examples/training.csv"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> plimsoll.BenchReport:
    folder = tmp_path_factory.mktemp("runs")
    config = plimsoll.BenchConfig(max_frames=20, warmup=1, output_dir=folder, run_name="first")
    return plimsoll.bench(config)


def test_a_benchmark_has_what_the_documents_name(report: plimsoll.BenchReport) -> None:
    assert [model.slot_name for model in report.models] == ["yolo11n_rgb", "yolo11n_thermal"]
    for model in report.models:
        memory = model.gpu_memory
        assert memory.limit_gb == 8.0 and memory.within_limit is True
        assert memory.peak_gb is not None and memory.mean_gb is not None
        assert memory.peak_gb >= memory.mean_gb > 0
        assert memory.limit_type in ("hard", "soft", "unavailable")
        assert model.performance is not None and model.performance.frames == 20
        assert model.accuracy is not None and model.accuracy.map is not None
        assert 0.3 < model.accuracy.map <= (model.accuracy.map50 or 0) <= 1.0
    assert report.fusion is not None and len(report.fusion.cameras) == 2
    assert "demo_rgb.onnx" in repr(report) and "mAP" in repr(report)


def test_to_dict_is_the_report_on_disk(report: plimsoll.BenchReport) -> None:
    assert report.folder is not None and report.folder.name == "first"
    on_disk = json.loads((report.folder / "report.json").read_text())
    assert report.to_dict() == on_disk
    again = plimsoll.read_report(report.folder)
    assert again == report and again == plimsoll.read_report(report.folder / "report.json")
    assert pickle.loads(pickle.dumps(report)) == report
    # What is built from the fields alone has them all.
    assert dataclasses.replace(report.models[0]).to_dict() == on_disk["models"][0]


def test_every_field_of_the_schema_is_typed() -> None:
    schema = json.loads((ROOT / "docs/schema/report.schema.json").read_text())
    # The configuration stays a dict: `BenchConfig` here is what is asked for. These are texts.
    texts = {"BenchConfig", "HowObtained", "MeasuredWhat", "MemoryArchitecture", "ReportLimitType", "Status"}
    texts |= {"AccuracyTask", "EnergyOf"}
    for name, definition in {**schema["$defs"], "BenchReport": schema}.items():
        if name in texts:
            continue
        kind = getattr(records, name, None) or getattr(results, name)
        hints = {name.rstrip("_"): hint for name, hint in typing.get_type_hints(kind).items()}
        assert set(hints) == set(definition["properties"]), name
        for field, declared in definition["properties"].items():
            may_be_null = "null" in json.dumps(declared.get("type", declared.get("anyOf", "")))
            assert may_be_null == (type(None) in typing.get_args(hints[field])), f"{name}.{field}"


def test_a_report_shows_itself_in_a_notebook(report: plimsoll.BenchReport) -> None:
    page = report._repr_html_()
    assert page.count("<svg") == 2 and "Memory over time" in page and "<table>" in page
    assert "reasons to doubt" in page


def test_what_cannot_be_measured_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing.onnx"):
        plimsoll.bench(model0=tmp_path / "missing.onnx", mode="rgb", output_dir=tmp_path)
    with pytest.raises(plimsoll.CommandFailed, match="no model was measured .*TensorRT"):
        plimsoll.bench(engine="tensorrt", mode="rgb", max_frames=1, output_dir=tmp_path)
    with pytest.raises(TypeError, match="max_frame"):
        plimsoll.bench(max_frame=3)


def test_runs_are_compared(report: plimsoll.BenchReport) -> None:
    same = plimsoll.compare(report, report.folder or "", tolerance="10%")
    assert not same.regression and same.tolerance == 0.1 and same.comparable
    assert [slot.slot for slot in same.slots] == [0, 1]
    assert {"fps", "mAP", "peak memory"} <= {figure.name for figure in same.slots[0].figures}
    assert "cannot say" in repr(same) and "<table>" in same._repr_html_()
    with pytest.raises(ValueError, match="has no folder"):
        plimsoll.compare(dataclasses.replace(report), report)


def test_a_recording_is_replayed() -> None:
    replayed = plimsoll.replay(TRAINING, passes=1)
    assert replayed.completed and replayed.events == 269
    assert replayed.peak_reserved_bytes is not None
    assert replayed.peak_reserved_bytes >= replayed.peak_live_bytes == 121_536_512
    assert "peak live        115.91 MiB" in repr(replayed) and "269 events on 1 stream" in repr(replayed)
    taken = [calls.calls for calls in replayed.cold_device_calls if calls.call == "create"]
    assert taken == [replayed.cold_taken_from_device]
    said = replayed.to_dict()
    assert set(said) == {field.name for field in dataclasses.fields(replayed)}


def test_a_recording_that_does_not_fit_is_an_answer() -> None:
    replayed = plimsoll.replay(TRAINING, cap="10MiB", passes=1)
    assert not replayed.completed and replayed.failure is not None
    assert (replayed.failure.pass_, replayed.failure.requested_bytes) == (0, 25_165_824)
    assert replayed.to_dict()["failure"]["pass"] == 0
    assert "can never fit" in replayed._repr_html_()


def test_a_checkpoint_is_exported(tmp_path: Path) -> None:
    to = tmp_path / "small.onnx"
    exported = plimsoll.export(ROOT / "docs/examples/small8.pt", to, imgsz=(64, 96))
    assert exported.bytes == to.stat().st_size and exported.imgsz == (64, 96)
    assert "64x96" in repr(exported) and "classes" in exported._repr_html_()
    with pytest.raises(ValueError, match="must end in .onnx or .engine"):
        plimsoll.export(ROOT / "docs/examples/small8.pt", tmp_path / "small.tflite")


def test_an_answer_of_another_version_says_so() -> None:
    with pytest.raises(plimsoll.Error, match="has no high: .*different versions"):
        records.Interval.from_dict({"low": 1})


def test_the_words_of_the_command_become_the_error() -> None:
    said = '{"error":{"causes":["No such file"],"kind":"input","message":"cannot open x"}}\n'
    assert str(command.failure(said, 2)) == "cannot open x: No such file"
    assert isinstance(command.failure("warning: a\nerror: broken\n", 3), plimsoll.CommandFailed)
    assert str(command.failure("", 101)) == "plimsoll ended with exit code 101"


def test_ctrl_c_stops_the_command_which_still_writes_its_report(tmp_path: Path) -> None:
    program = f"""
        import plimsoll
        try:
            plimsoll.bench(duration="5m", mode="rgb", warmup=0, output_dir={str(tmp_path)!r}, run_name="x")
        except KeyboardInterrupt:
            print("stopped")
        """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    log = tmp_path / "x/run.log"
    while child.poll() is None and not log.exists():
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate()
    assert said == "stopped\n"
    assert plimsoll.read_report(tmp_path / "x").interrupted
