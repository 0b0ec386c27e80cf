"""What a spec is parsed into, and what is refused with the field's path."""

import pytest
from carousel_operator.resource import InferenceServer, InferenceServerSpec, InvalidSpec
from carousel_operator.rules import SPEC_RULES
from carousel_operator.samples import SAMPLES

from tests.operator.specs import BOUND_CASES, RULE_CASES, RuleCase, at, parsed, resource, server, spec


def test_the_smallest_spec_has_every_default() -> None:
    found = parsed()
    assert (found.replicas, found.suspend, found.preset) == (1, False, "tiny")
    assert found.limits.sessions.count == 64
    assert found.drain.request_timeout == 120.0
    assert found.resources.cpu == 1000
    assert found.service.port == 8000


@pytest.mark.parametrize("case", RULE_CASES, ids=lambda case: case.rule)
def test_a_rule_accepts_and_refuses(case: RuleCase) -> None:
    rule = next(rule for rule in SPEC_RULES if rule.name == case.rule)
    parsed(case.accepted)
    with pytest.raises(InvalidSpec) as refused:
        parsed(case.refused)
    assert refused.value.field == f"spec{rule.field}"
    assert refused.value.message == rule.message


@pytest.mark.parametrize(("field", "good", "bad"), BOUND_CASES)
def test_a_bound_is_kept_and_names_its_field(field: str, good: object, bad: object) -> None:
    parsed(at(field, good))
    with pytest.raises(InvalidSpec) as refused:
        parsed(at(field, bad))
    assert refused.value.field.startswith(f"spec.{field}")


def test_an_unknown_field_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.limits\.sesions"):
        parsed(limits={"sesions": {"count": 1}})


def test_a_spec_survives_dump_and_parse() -> None:
    for sample in SAMPLES:
        found = InferenceServerSpec.parse(sample.spec)
        assert InferenceServerSpec.parse(found.dump()) == found


def test_quantities_are_equal_by_value_not_by_spelling() -> None:
    one = parsed(resources={"hostMemory": "4Gi", "cpu": "1500m"}, drain={"sessionTimeout": "10m"})
    other = parsed(resources={"hostMemory": "4096Mi", "cpu": "1.5"}, drain={"sessionTimeout": "600s"})
    assert one == other


def test_an_automatic_expert_pool_is_the_same_as_none() -> None:
    assert parsed(engine={"expertPoolBytes": "auto"}) == parsed()


def test_metadata_is_read_and_a_deletion_is_seen() -> None:
    found = server({"replicas": 2}, name="a")
    assert (found.name, found.namespace, found.uid, found.generation) == ("a", "default", "0001", 1)
    assert not found.deleting
    raw = resource("a")
    raw["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {"carousel.dev/preview": "true"}}
    found = InferenceServer.parse(raw)
    assert found.deleting
    assert found.preview


def test_an_object_without_a_spec_names_what_is_missing() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.model"):
        InferenceServer.parse({"metadata": {"name": "a"}})


def test_merging_none_removes_a_field() -> None:
    assert spec({"image": {"pullPolicy": "Never"}}, {"image": {"pullPolicy": None}}) == spec()
