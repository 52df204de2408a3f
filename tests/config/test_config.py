"""Federations as TOML: each mistake gets one clear line, and what is read is what is written."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from coordinator.config import federation, load_toml, read_settings, to_toml
from coordinator.rounds import RoundPolicy
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import method_names
from edge_sim.config import settings
from edge_sim.fleet import fleet as fleets

METHODS = ", ".join(method_names())
GOOD = """
[federation]
name = "tiny"
method = "fedmd"
rounds = 3
devices = 4

[method]
public_batch = 8

[train]
learning_rate = 0.05

[data]
source = "npz"
path = "pictures.npz"
public = 40

[partition]
classes_per_device = 2

[[fleet]]
count = 3
model = "softmax"

[[fleet]]
model = "softmax"
board = "rpi-zero-2w"
"""


@pytest.fixture
def folder(tmp_path, pictures) -> Path:
    """A folder with the file of a good federation, and its data."""
    (tmp_path / "pictures.npz").write_bytes(pictures.read_bytes())
    (tmp_path / "federation.toml").write_text(GOOD)
    return tmp_path


def complaint(act) -> str:
    """The one line that a user gets."""
    with pytest.raises(UsageError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 450
    return message


def simulated(file: Path, *overrides: str) -> str:
    """What a simulation of this file complains about."""
    return complaint(lambda: fleets.build_fleet(settings.load_config(file, overrides)))


def test_a_good_file(folder):
    config = settings.load_config(folder / "federation.toml")
    fleet = fleets.build_fleet(config)
    assert config.ids == ("device-00", "device-01", "device-02", "device-03")
    assert [row.board for row in config.rows] == ["rpi4", "rpi4", "rpi4", "rpi-zero-2w"]
    assert fleet.federation.policy == RoundPolicy(expected=4, quorum=4, rounds=3, exchanges=1, retry_s=5.0)
    assert fleet.federation.spec.params["public_batch"] == 8
    assert fleet.federation.spec.classes == 4


# -- one row for each mistake ---------------------------------------------------------------------------------------

SECTIONS = "data, encoding, faults, federation, fleet, guard, method, partition, public, robust, run, scenario, train"
MISTAKES = {
    "unknown section": ("[train]", "[trian]", rf"section \[trian\]; .*{SECTIONS}"),
    "no federation": ("[federation]", "[run]", r"\[federation\] is missing"),
    "unknown key": (
        "learning_rate",
        "learning_rte",
        "train.learning_rte: unknown key; did you mean learning_rate[?]",
    ),
    "missing key": ("rounds = 3", "", "federation.rounds: missing"),
    "wrong type": (
        "rounds = 3",
        'rounds = "3"',
        "federation.rounds: .*from 1 to 1000000000, found '3'",
    ),
    "a fraction of a round": ("rounds = 3", "rounds = 3.0", "federation.rounds: .*integer .*, found 3.0"),
    "true is no number": ("learning_rate = 0.05", "learning_rate = true", "train.learning_rate: .*number"),
    "a schedule without its factor": (
        "[train]",
        '[train]\nschedule = "step"',
        "train.schedule_factor: missing, .*schedule = 'step'",
    ),
    "a step of no length": (
        "[train]",
        '[train]\nschedule = "step"\nschedule_factor = 0.5',
        "train.schedule_every_rounds: missing",
    ),
    "a floor above the rate": (
        "[train]",
        '[train]\nschedule = "cosine"\nschedule_floor = 0.5',
        "train.schedule_floor: expected at most the learning_rate, 0.05, found 0.5",
    ),
    "a schedule that ends too early": (
        "[train]",
        '[train]\nschedule = "cosine"\nschedule_rounds = 2',
        "train.schedule: 'cosine' .* 0 from round 2 of 3",
    ),
    "a key of a table in a table": (
        "[data]",
        "[data]\naugment = {crop_pixel = 2}",
        "data.augment.crop_pixel: unknown key; did you mean crop_pixels",
    ),
    "larger than any number": (
        "learning_rate = 0.05",
        "learning_rate = 99999999999999999999",
        "train.learning_rate: .*from 0 to 1000, found 99999999999999999999",
    ),
    "no rounds": ("rounds = 3", "rounds = 0", "federation.rounds: .*from 1 to 1000000000, found 0"),
    "no devices": ("devices = 4", "devices = 0", "federation.devices: .*from 1 to 1000000, found 0"),
    "no such name": ('"tiny"', '"Tiny Fed"', r"federation.name: .*36 characters .*\[a-z0-9\]"),
    "not finite": (
        "learning_rate = 0.05",
        "learning_rate = nan",
        "train.learning_rate: .*from 0 to 1000, found nan",
    ),
    "too many wanted": (
        "devices = 4",
        "devices = 4\nquorum = 5",
        "federation.quorum: .*4 devices, found 5",
    ),
    "a roster in a simulation": (
        "devices = 4",
        'devices = 4\nroster = ["a"]',
        "federation.roster: .*simulated .*leave it out",
    ),
    "no such method": (
        '"fedmd"',
        '"steam"',
        f"federation.method: .*'steam'; .*{METHODS}",
    ),
    "no such parameter": (
        "public_batch",
        "tau",
        "method.tau: fedmd .*no such parameter; .*align, digest_steps, error, form, public_batch, target, temperature",
    ),
    "parameter of a wrong type": (
        "public_batch = 8",
        "public_batch = 8.5",
        "method.public_batch: .*integer.*, found 8.5",
    ),
    "parameter out of range": (
        "public_batch = 8",
        "public_batch = 0",
        "method.public_batch: .*from 1 to 65536, found 0",
    ),
    "parameter in a sub-table": (
        "public_batch = 8",
        "[method.fedmd]\ntarget = 'mine'",
        "method.fedmd.target: .*by-form .*leave-one-out .*all, .*mine",
    ),
    "parameter in two places": (
        "public_batch = 8",
        "public_batch = 8\n[method.fedmd]\npublic_batch = 9",
        r"method.public_batch: .*\[method.fedmd\]; .*method.fedmd.public_batch",
    ),
    "sub-table of no method": (
        "public_batch = 8",
        "[method.fedxyz]\na = 1",
        rf"\[method.fedxyz\]: .*method; .*{METHODS}",
    ),
    "sub-table that is none": ("public_batch = 8", "fedmd = 8", "method.fedmd: .*no such parameter"),
    "counts that do not add up": (
        "count = 3",
        "count = 5",
        r"federation.devices: 4, .*\[\[fleet\]\] .*6$",
    ),
    "no such board": (
        '"rpi-zero-2w"',
        '"rpi-9"',
        r"fleet\[1\].board: .*'rpi-9': .*jetson-nano, .*rpi4, rpi5, x86",
    ),
    "no such link": (
        'board = "rpi-zero-2w"',
        'link = "string"',
        r"fleet\[1\].link: .*'string': .*ethernet, lte-cat1, wifi",
    ),
    "no such model": (
        'model = "softmax"\nboard',
        'model = "gpt"\nboard',
        r"fleet\[1\].model: .*'gpt'; .*softmax, ",
    ),
    "fleet of none": ("count = 3", "count = 0", r"fleet\[0\].count: .*from 1 to 1000000, found 0"),
    "half a size": ("count = 3", "count = 3\nsize = [8]", r"fleet\[0\].size: .*\[height, width\], .*\[8\]"),
    "no such source": ('"npz"', '"cifar"', r"data.source: .*digits or npz"),
    "no path": ('path = "pictures.npz"', "", 'data.path: missing; .*source = "npz"'),
    "no file": ('"pictures.npz"', '"photos.npz"', r"data.path: .*photos.npz: .*such file"),
    "all public": (
        "public = 40",
        "public = 240",
        "data.public: .*fewer .*240 .*found 240",
    ),
    "no public set": ("public = 40", "public = 0", "fedmd .*public set: .*data.public ="),
    "no such partition": (
        "classes_per_device = 2",
        'kind = "random"',
        r"partition.kind: .*classes_per_device or iid or",
    ),
    "more classes than there are": (
        "classes_per_device = 2",
        "classes_per_device = 5",
        "partition.classes_per_device: .*4, found 5",
    ),
    "a share beyond 1": (
        "classes_per_device = 2",
        "classes_per_device = 1\n[faults]\ndrop = 2.0",
        "faults.drop: .*from 0 to 0.95, found 2.0",
    ),
    "links cut more often than runs end": (
        "classes_per_device = 2",
        "classes_per_device = 1\n[faults]\ndisconnect = 0.51",
        "faults.disconnect: .*from 0 to 0.5, found 0.51",
    ),
    "links that are back at once": (
        "classes_per_device = 2",
        "classes_per_device = 1\n[faults]\ndisconnect_s = 0",
        "faults.disconnect_s: .*from 0.1 to 1000000, found 0",
    ),
    "too few samples": (
        "classes_per_device = 2",
        "min_samples = 1000",
        "partition.min_samples: 4 devices with 1000 samples each need 4,000, and there are 200",
    ),
    "no such payload kind": (
        "[federation]",
        '[encoding]\nclass-rows = "f16"\n[federation]',
        "encoding.class-rows: unknown key; .*class_rows[?] .*class_rows, .*logits",
    ),
    "no such encoding": (
        "[federation]",
        '[encoding]\nlogits = "int8_row"\n[federation]',
        "encoding.logits: .*f32 .*f16 .*int8-row .*int8-tensor, .*'int8_row'",
    ),
    "nothing like an encoding": (
        "[federation]",
        "[encoding]\nlogits = 8\n[federation]",
        "encoding.logits: .*f32 .*, found 8",
    ),
    "rows of a flat array": (
        "[federation]",
        '[encoding]\nweights = "int8-row"\n[federation]',
        "encoding.weights: .*f32 or f16 or int8-tensor",
    ),
    "syntax": ("rounds = 3", "rounds = = 3", r"TOML: .*line 5, column 10"),
    "a key that comes twice": ("rounds = 3", "rounds = 3\nrounds = 4", r"valid TOML: .*line 6"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_with_the_key_and_what_is_allowed(folder, name):
    old, new, expected = MISTAKES[name]
    assert GOOD.count(old) == 1
    file = folder / "federation.toml"
    file.write_text(GOOD.replace(old, new))
    message = simulated(file)
    assert re.search(expected, message), message


@pytest.mark.parametrize("name", sorted(MISTAKES.keys() - {"no file", "all public"}))
def test_a_mistake_names_the_file(folder, name):
    old, new, _ = MISTAKES[name]
    file = folder / "federation.toml"
    file.write_text(GOOD.replace(old, new))
    assert simulated(file).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("federation", 3),
        ("method", 3),
        ("train", "fast"),
        ("data", []),
        ("run", 1.5),
        ("partition", None),
        ("encoding", "f16"),
    ],
)
def test_a_section_that_is_no_table(folder, section, value):
    tables = {**load_toml(folder / "federation.toml"), section: value}
    message = complaint(lambda: fleets.build_fleet(settings.parse(tables, folder / "federation.toml")))
    assert message.startswith(f"{folder / 'federation.toml'}: [{section}] ")
    assert "be a table" in message


def test_a_fleet_that_is_one_table(folder):
    tables = {**load_toml(folder / "federation.toml"), "fleet": {"count": 4}}
    message = complaint(lambda: settings.parse(tables, folder / "federation.toml"))
    assert "fleet: write [[fleet]]" in message


def test_files_that_cannot_be_read(tmp_path):
    assert simulated(tmp_path / "none.toml") == f"{tmp_path / 'none.toml'}: no such file"
    assert "is a folder" in simulated(tmp_path)
    (tmp_path / "latin.toml").write_bytes('[federation]\nname = "Zürich"'.encode("latin-1"))
    assert "UTF-8" in simulated(tmp_path / "latin.toml")


# -- one file, several methods --------------------------------------------------------------------------------------


def test_sub_tables_of_other_methods_are_left_alone(folder):
    file = folder / "federation.toml"
    file.write_text(GOOD.replace("public_batch = 8", "[method.fedmd]\npublic_batch = 9\n[method.fedal]\ntau = 3"))
    assert fleets.build_fleet(settings.load_config(file)).federation.spec.params["public_batch"] == 9


def test_a_round_of_fedal_needs_an_iteration(folder):
    file = folder / "federation.toml"
    message = simulated(file, "federation.method=fedal", "method.tau=0")
    assert message.startswith(f"{file}: method.tau: ")
    assert message.endswith("from 1 to 1000, found 0")


# -- overrides ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "section", "value"),
    [
        ("federation.rounds=20", "federation", {"rounds": 20}),
        (" federation.rounds = 20", "federation", {"rounds": 20}),
        ("federation.name=lab-2", "federation", {"name": "lab-2"}),
        ('federation.name="20"', "federation", {"name": "20"}),
        ("train.learning_rate=1e-3", "train", {"learning_rate": 1e-3}),
        ("run.standalone=false", "run", {"standalone": False}),
        ("faults.drop=0.5", "faults", {"drop": 0.5}),
        ("method.fedal.tau=3", "method", {"fedal": {"tau": 3}}),
        ("partition.kind=iid", "partition", {"kind": "iid"}),
        ('federation.roster=["a", "b"]', "federation", {"roster": ["a", "b"]}),
        ("federation.name=a=b", "federation", {"name": "a=b"}),
        ("federation.name=", "federation", {"name": ""}),
    ],
)
def test_overrides(folder, override, section, value):
    before, after = load_toml(folder / "federation.toml"), load_toml(folder / "federation.toml", [override])
    assert after == {**before, section: {**before.get(section, {}), **value}}


def test_an_only_row_without_a_count_means_all_devices(folder):
    tables = {**load_toml(folder / "federation.toml"), "fleet": [{"model": "softmax"}]}
    assert len(settings.parse(tables, folder / "federation.toml").rows) == 4
    with pytest.raises(UsageError, match=r"counts add up to 2$"):
        settings.parse({**tables, "fleet": [{"model": "softmax"}] * 2}, folder / "federation.toml")


def test_the_last_override_counts(folder):
    tables = load_toml(folder / "federation.toml", ["federation.rounds=1", "federation.rounds=2"])
    assert tables["federation"]["rounds"] == 2


@pytest.mark.parametrize(
    "override", ["rounds=3", "federation.rounds", "=3", "federation.=3", ".rounds=3", "a..b=3", ""]
)
def test_an_override_that_is_none(folder, override):
    message = complaint(lambda: load_toml(folder / "federation.toml", [override]))
    assert message.startswith(f"--set {override}: expected section.key=VALUE")


def test_an_override_below_something_that_is_no_table(folder):
    for override in ("fleet.count=3", "federation.name.first=3"):
        message = complaint(lambda: load_toml(folder / "federation.toml", [override]))  # noqa: B023  # called at once
        assert "is not a table" in message


def test_an_override_is_checked_like_the_file(folder):
    message = simulated(folder / "federation.toml", "federation.devices=many")
    assert re.search("federation.devices: expected an integer.* 'many'$", message)


# -- a coordinator's own reading ------------------------------------------------------------------------------------

DEPLOYED = """
[federation]
name = "lab"
method = "{method}"
rounds = 2
devices = 2
classes = 10
roster = ["b", "a"]

[public]
path = "public.npz"
"""


def deployed(folder: Path, text: str):
    file = folder / "lab.toml"
    file.write_text(text)
    np.savez(folder / "public.npz", np.zeros((20, 4), np.uint8))
    return federation(read_settings(load_toml(file), file))


def test_a_deployment(tmp_path):
    ready = deployed(tmp_path, DEPLOYED.format(method="fedal"))
    assert ready.roster == ("a", "b")
    assert ready.spec.classes == 10
    assert ready.spec.public is not None
    assert ready.spec.public.count == 20
    assert ready.policy.exchanges == 6


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('["b", "a"]', '["b", "b"]', "federation.roster: expected 2 different ids, one for each device, found 1"),
        ('["b", "a"]', '["b", "A"]', r"federation.roster\[1\]: expected at most 36 characters"),
        ("classes = 10", "", "federation.classes: missing; without a data set it cannot be inferred"),
        ("classes = 10", "classes = 1", "federation.classes: expected an integer from 2 to 65535, found 1"),
        ('[public]\npath = "public.npz"', "", "fedmd needs a public set: give .public. path = FILE.npz"),
        ('path = "public.npz"', "", "public.path: missing"),
        ('"public.npz"', '"none.npz"', "none.npz: no such file"),
        ("[public]", "[pubic]", r"unknown section \[pubic\]; did you mean public\? known are"),
    ],
)
def test_a_mistake_in_a_deployment(tmp_path, old, new, expected):
    good = DEPLOYED.format(method="fedmd")
    assert good.count(old) == 1
    message = complaint(lambda: deployed(tmp_path, good.replace(old, new)))
    assert re.search(expected, message), message


def test_a_simulation_s_file_serves_a_coordinator(folder):
    file = folder / "federation.toml"
    tables = load_toml(file, ["federation.classes=4", "federation.method=local"])
    del tables["method"]
    assert federation(read_settings(tables, file)).policy.expected == 4


# -- what is written is what is read --------------------------------------------------------------------------------

keys = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=8)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20),
    st.datetimes(),
    st.dates(),
    st.times(),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)


@examples(200)
@given(tables=st.dictionaries(keys, values, max_size=4))
def test_tables_survive_the_file(tmp_path_factory, tables):
    file = tmp_path_factory.getbasetemp() / "round_trip.toml"
    file.write_text(to_toml(tables), encoding="utf-8", newline="\n")
    assert load_toml(file) == tables


def test_a_resolved_file_reads_well_and_says_the_same(folder):
    config = settings.load_config(folder / "federation.toml")
    text = to_toml(config.tables)
    assert "[method]\npublic_batch = 8\n" in text
    assert "learning_rate = 0.05\n" in text
    assert "optimiser = " in text  # a default, so that the file says all that the results follow from
    elsewhere = folder / "runs" / "one" / "federation.toml"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(text)
    again = settings.load_config(elsewhere)
    assert dataclasses.replace(again, file=config.file) == config
    assert fleets.build_fleet(again).dataset.sha256 == fleets.build_fleet(config).dataset.sha256


def test_what_python_leaves_out_is_left_out(tmp_path):
    tables = {"federation": {"quorum": None, "name": 'say "hi"\\', "roster": ("a", "b")}, "at": dt.date(2024, 1, 2)}
    (tmp_path / "file.toml").write_text(to_toml(tables))
    assert load_toml(tmp_path / "file.toml") == {
        "federation": {"name": 'say "hi"\\', "roster": ["a", "b"]},
        "at": dt.date(2024, 1, 2),
    }


def test_parameters_of_a_method_that_is_not_run_are_checked_too(folder):
    assert "method.fedprox.muu: fedprox has no" in simulated(folder / "federation.toml", "method.fedprox.muu=1")


EVERYTHING = """
[method.fedal]
tau = 3

[train]
optimiser = "sgd"

[encoding]
logits = "f16"

[faults]
drop = 0.1
seed = 4

[scenario]
broker_lost_at_s = [5.0]

[run]
stacked = ["softmax"]
"""


def test_the_resolved_tables_of_every_section_are_read_back(folder):
    file = folder / "federation.toml"
    file.write_text(GOOD.replace("[train]\nlearning_rate = 0.05\n", EVERYTHING))
    fleet = [{"count": 4, "dropout": 0.5, "size": [8, 8]}]
    config = settings.parse({**load_toml(file), "fleet": fleet, "public": {"path": "public.npz"}}, file)
    assert settings.parse(config.tables, file) == config
    alone = settings.alone(config)
    assert settings.parse(alone.tables, file) == alone
    assert (alone.federation.method, alone.fleet[0].dropout, alone.faults.drop) == ("local", 0.0, 0.0)
    assert (alone.train, alone.data, alone.fleet[0].size) == (config.train, config.data, (8, 8))


@pytest.mark.parametrize(("given", "count"), [(0.3, 3), (0.01, 1), (1.0, 10), (4, 4)])
def test_participants_may_be_a_share_of_the_devices(given: float, count: int) -> None:
    tables = {"federation": {"name": "tiny", "method": "local", "rounds": 1, "devices": 10, "participants": given}}
    parsed = settings.parse(tables, Path("f.toml"))
    assert parsed.federation.participants == count
    assert settings.parse(parsed.tables, Path("f.toml")) == parsed


@pytest.mark.parametrize("given", [0.0, 1.5, -0.3, "0.3"])
def test_a_share_of_participants_that_cannot_be_is_refused(given: object) -> None:
    tables = {"federation": {"name": "tiny", "rounds": 1, "devices": 10, "participants": given}}
    with pytest.raises(UsageError, match=r"federation\.participants"):
        settings.parse(tables, Path("f.toml"))
