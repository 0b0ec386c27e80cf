"""Generated files: what is in the repository is what the models give, and the check sees a difference."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from carousel_operator import crd, manifests, names, reference, samples
from carousel_operator.resource import InferenceServer
from carousel_server import __version__
from carousel_server.admin_state import EXIT_CODES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The generated files and what they are made from, to be spoilt."""
    for folder in ("manifests", "charts", "docs/reference"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_the_repository_is_up_to_date() -> None:
    assert manifests.stale(ROOT) == []
    assert manifests.main(["--check"]) == 0


@pytest.mark.parametrize("path", [*manifests.files(), manifests.RENDERED], ids=str)
def test_an_edited_file_is_found(copy: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / path).write_text((copy / path).read_text() + "\n")
    assert manifests.main(["--check", "--root", str(copy)]) == 1
    assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("path", [*manifests.files(), manifests.RENDERED], ids=str)
def test_a_missing_file_is_found(copy: Path, path: Path) -> None:
    (copy / path).unlink()
    assert len(manifests.stale(copy)) == 1


def test_a_changed_chart_makes_the_rendered_operator_stale(copy: Path) -> None:
    values = copy / "charts/carousel/values.yaml"
    values.write_text(values.read_text().replace("logLevel: info", "logLevel: debug"))
    assert manifests.stale(copy) == ["manifests/operator.yaml is not the chart as it is now, or was edited"]


def test_a_sample_that_was_removed_does_not_stay_behind(copy: Path) -> None:
    (copy / "manifests/samples/old.yaml").write_text("")
    assert manifests.stale(copy) == ["manifests/samples/old.yaml is not a sample any more"]
    manifests.write(copy)
    assert manifests.stale(copy) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("manifests/**/*.yaml")), ids=lambda path: path.name)
def test_a_generated_file_says_so_in_line_one(path: Path) -> None:
    assert path.read_text().startswith(manifests.NOTICE)


def test_the_crd_file_is_the_crd_without_anchors() -> None:
    text = (ROOT / "manifests/crd.yaml").read_text()
    assert yaml.safe_load(text) == crd.custom_resource_definition()
    assert not re.search(r"[&*]id\d", text)


@pytest.mark.parametrize("sample", samples.SAMPLES, ids=lambda sample: sample.file)
def test_a_sample_parses_and_has_a_name_of_its_own(sample: samples.Sample) -> None:
    loaded = yaml.safe_load((ROOT / "manifests/samples" / sample.file).read_text())
    assert InferenceServer.parse(loaded).name == sample.name
    assert [other.name for other in samples.SAMPLES].count(sample.name) == 1


def test_every_field_of_the_spec_is_in_the_sample_of_every_field_except_the_other_choices() -> None:
    spec = next(sample.spec for sample in samples.SAMPLES if sample.file == "every-field.yaml")

    def given(path: str) -> bool:
        value: object = spec
        for part in path.split("."):
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
        return True

    other_choices = ("model.source.", "gpu.", "cache.")
    paths = [path for path, _, _ in reference.walk(crd.open_api_schema()["properties"]["spec"])]
    assert [p for p in paths if not given(p) and not p.startswith(other_choices)] == []


def test_the_reference_page_has_every_name() -> None:
    page = (ROOT / "docs/reference/inferenceserver.md").read_text()
    listed = [names.CONDITIONS, names.REASONS, names.EVENTS, names.LABELS, names.ANNOTATIONS, names.METRICS]
    assert [name for table in listed for name in table if f"| `{name}` |" not in page] == []
    assert [code for code, reason in EXIT_CODES.items() if f"| {code} | {reason} |" not in page] == []


def test_charts_and_packages_have_one_version() -> None:
    for chart in ("carousel", "carousel-crds"):
        found = yaml.safe_load((ROOT / "charts" / chart / "Chart.yaml").read_text())
        assert (found["version"], found["appVersion"]) == (__version__, __version__)
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
