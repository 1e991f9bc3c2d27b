from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.cli.errors import WrongUsage
from trimtab.cli.settings import Option, gather, key_of, read_config, refuse_unknown_keys, take_config_path

LISTEN = Option("listen", "listen")
PEER = Option("peer", "peers", repeatable=True)


def test_a_key_is_the_flag_in_snake_case() -> None:
    assert key_of("--data-dir") == "data_dir"
    assert key_of("--json") == "json"


def test_a_variable_wins_over_the_file_and_an_empty_one_does_not_count() -> None:
    config = {"listen": "from-file:1"}
    assert gather([LISTEN], config, {"TRIMTAB_LISTEN": "from-variable:1"}) == {"listen": "from-variable:1"}
    assert gather([LISTEN], config, {"TRIMTAB_LISTEN": ""}) == {"listen": "from-file:1"}
    assert gather([LISTEN], {}, {}) == {}


def test_values_are_named_as_the_command_names_its_parameters() -> None:
    assert gather([PEER], {"peer": ["a:1"]}, {}) == {"peers": ["a:1"]}


def test_a_repeatable_option_takes_a_list_one_value_or_a_variable_with_commas_or_spaces() -> None:
    assert gather([PEER], {"peer": ["a:1", "b:2"]}, {}) == {"peers": ["a:1", "b:2"]}
    assert gather([PEER], {"peer": "a:1"}, {}) == {"peers": ["a:1"]}
    assert gather([PEER], {}, {"TRIMTAB_PEER": "a:1,b:2 c:3"}) == {"peers": ["a:1", "b:2", "c:3"]}


def test_the_contact_variable_names_peers_for_commands_that_talk_to_a_cluster_only() -> None:
    environment = {"TRIMTAB_CONTACT": "a:1"}
    assert gather([PEER], {}, environment) == {"peers": ["a:1"]}
    assert gather([PEER], {}, environment, contacts_cluster=False) == {}
    assert gather([PEER], {}, {**environment, "TRIMTAB_PEER": "b:2"}) == {"peers": ["b:2"]}


def test_a_list_for_a_single_option_and_a_table_for_any_are_refused() -> None:
    with pytest.raises(WrongUsage, match="'listen' takes one value, not a list"):
        gather([LISTEN], {"listen": ["a:1", "b:2"]}, {})
    with pytest.raises(WrongUsage, match="'listen' must be a value"):
        gather([LISTEN], {"listen": {"host": "a"}}, {})


def test_config_is_found_anywhere_before_the_double_dash() -> None:
    assert take_config_path(["run", "--config", "t.toml", "--json"], {}) == (["run", "--json"], Path("t.toml"))
    assert take_config_path(["--config=t.toml", "run"], {}) == (["run"], Path("t.toml"))
    assert take_config_path(["run", "--", "--config", "x"], {}) == (["run", "--", "--config", "x"], None)


def test_the_flag_wins_over_the_variable_that_names_a_file() -> None:
    assert take_config_path(["run"], {"TRIMTAB_CONFIG": "v.toml"}) == (["run"], Path("v.toml"))
    assert take_config_path(["run", "--config", "f.toml"], {"TRIMTAB_CONFIG": "v.toml"})[1] == Path("f.toml")


def test_config_without_a_path_is_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="--config needs the path"):
        take_config_path(["run", "--config"], {})


def test_a_file_that_is_missing_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match=r"can't read the configuration .*absent\.toml: No such file"):
        read_config(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("listen = ")
    with pytest.raises(WrongUsage, match=r"broken\.toml is not valid TOML"):
        read_config(broken)


def test_a_misspelt_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(WrongUsage, match="sets 'listne', which no command knows; did you mean 'listen'"):
        refuse_unknown_keys(["listne"], {"listen", "peer"}, Path("t.toml"))
    refuse_unknown_keys(["listen"], {"listen", "peer"}, Path("t.toml"))
