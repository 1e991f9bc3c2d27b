from tests.unit.topology.clusters import gone, member, view_of

from trimtab.tablets.domains import Domain, datacenters, domain_of


def test_what_nobody_says_has_a_default_and_case_does_not_matter() -> None:
    assert domain_of(member(1)) == Domain("dc1", "rack1", "i1")
    said = {"DC": "north", "Rack": "r7", "HOST": "box"}
    assert domain_of(member(1, failure_domain=said)) == Domain("north", "r7", "box")


def test_data_centres_are_those_of_members() -> None:
    view = view_of(member(1), member(2, failure_domain={"dc": "b"}), gone(3, failure_domain={"dc": "c"}), member(4))
    assert datacenters(view) == {"b": 1, "dc1": 2}
