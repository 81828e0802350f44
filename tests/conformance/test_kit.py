"""The conformance kit: its runner, its reports, its certificates."""

import datetime
import html.parser
import json
import os
import pathlib
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import torch_backplane
from backplane_conformance import certificate, command, files, outcome, page, waivers, worker
from patience import run as run_patiently

from conformance import mutants

PACKAGE = pathlib.Path(torch_backplane.__file__).parent
REFERENCE = PACKAGE / "plugins" / "libbackplane_reference.so"
TODAY = datetime.date(2026, 11, 26)


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """A folder of a whole run of level 1."""
    folder = tmp_path_factory.mktemp("certified")
    assert command.certify(["reference", "--level", "1", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def mutant(tmp_path_factory):
    return mutants.build(PACKAGE, tmp_path_factory.mktemp("mutant"))


@pytest.fixture
def as_mutant(mutant, monkeypatch):
    def choose(name):
        monkeypatch.setenv("BACKPLANE_MUTANT", name)
        monkeypatch.setenv("BACKPLANE_MUTANT_OF", str(REFERENCE))
        return mutant

    return choose


def test_reference_reaches_level_1(certified):
    result = json.loads((certified / "report.json").read_text())
    assert result["reached"] == 1
    assert result["abi"] and result["sha256"] == files.sha256(REFERENCE)
    by_level = [sum(c["level"] <= level for c in result["cases"]) for level in (0, 1)]
    assert by_level[0] >= 140 and by_level[1] >= 1345
    assert not [c for c in result["cases"] if c["verdict"] not in outcome.GOOD]


@pytest.mark.parametrize("plugin", ["cpu_onednn", "opencl", "reference_minimal"])
def test_own_plugins_reach_level_0(plugin, tmp_path):
    assert command.certify([plugin, "--level", "0", "--out", str(tmp_path)]) == 0


def test_a_worker_that_holds_too_much_is_replaced(tmp_path, monkeypatch):
    """Drivers keep memory of what they have built: a run of thousands of cases must end all the same."""
    made = []

    class Counted(worker.Worker):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self.process.pid)

    monkeypatch.setattr(worker, "Worker", Counted)
    for limit, count in ((4 << 30, 1), (0, 3)):
        made.clear()
        monkeypatch.setattr(worker, "WORKER_BYTES", limit)
        corpus = tmp_path / str(limit)
        files.unpack(corpus)
        target = worker.Target(REFERENCE, 0, corpus)
        every = worker.list_cases(target, 0)
        chosen = [c for c in every if c["door"] == "table"][:3]
        verdicts = []

        def note(one, verdicts=verdicts):
            verdicts.append(one["verdict"])
            return True

        worker.run_cases(target, chosen, note)
        assert verdicts == ["pass"] * 3
        assert len(made) == count


def test_kit_runs_without_torch(tmp_path):
    """As a vendor's build machine would: the package's folder alone, and no site packages."""
    code = (
        "import sys; from backplane_conformance.command import certify; "
        f"status = certify(['reference', '--level', '0', '--out', {str(tmp_path)!r}]); "
        "sys.exit(3 if 'torch' in sys.modules else status)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_case_counts_of_level_2(certified):
    target = worker.Target(REFERENCE, 0, certified / "corpus")
    cases = worker.list_cases(target, 2)
    assert len(cases) >= 7945
    assert len({case["id"] for case in cases}) == len(cases)


def test_interrupted_run_goes_on(certified, tmp_path, capsys):
    shutil.copytree(certified / "corpus", tmp_path / "corpus")
    lines = (certified / "journal.jsonl").read_text().splitlines()
    # What a killed run leaves: some outcomes, and half of a line.
    (tmp_path / "journal.jsonl").write_text("\n".join(lines[:1001]) + "\n" + lines[1001][:20])
    assert command.certify(["reference", "--level", "1", "--out", str(tmp_path)]) == 0
    assert "goes on behind 1000 cases" in capsys.readouterr().err
    result = json.loads((tmp_path / "report.json").read_text())
    assert result["reached"] == 1


def test_another_library_begins_anew(certified, tmp_path, capsys):
    shutil.copytree(certified / "corpus", tmp_path / "corpus")
    head, *rest = (certified / "journal.jsonl").read_text().splitlines()
    other = json.loads(head) | {"sha256": "0" * 64}
    (tmp_path / "journal.jsonl").write_text("\n".join([json.dumps(other), *rest]))
    command.certify(["reference", "--level", "0", "--out", str(tmp_path)])
    assert "goes on" not in capsys.readouterr().err


def test_crash_is_one_case(as_mutant, tmp_path):
    library = as_mutant("release-null-buffer-crashes")
    status = command.certify([str(library), "--level", "0", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "report.json").read_text())
    bad = [c for c in result["cases"] if c["verdict"] not in outcome.GOOD]
    assert status == 1 and result["reached"] == -1
    assert [c["id"] for c in bad] == ["misuse:release-null-buffer"]
    assert bad[0]["verdict"] == "crash" and "SIGSEGV" in bad[0]["text"]


def test_hang_is_one_case(as_mutant, tmp_path):
    library = as_mutant("execute-hangs")
    case = "operators:matmul/f32/[01]"
    arguments = [str(library), "--level", "2", "--case", case, "--timeout", "2", "--jobs", "1"]
    assert command.certify([*arguments, "--out", str(tmp_path)]) == 1
    result = json.loads((tmp_path / "report.json").read_text())
    assert [c["verdict"] for c in result["cases"]] == ["timeout", "timeout"]


def test_failure_is_repeated_and_replayed(as_mutant, tmp_path):
    library = as_mutant("result-absolute-error")
    arguments = [str(library), "--level", "2", "--case", "operators:add/f32/*"]
    assert command.certify([*arguments, "--out", str(tmp_path)]) == 1
    result = json.loads((tmp_path / "report.json").read_text())
    bad = next(c for c in result["cases"] if c["verdict"] == "fail")
    line = outcome.repeat_line(result, bad["id"])
    assert line.startswith("backplane certify") and outcome.escaped(bad["id"]) in line
    words = bad["replay"].split(" backplane ")[1].split()
    done = run_patiently(
        [sys.executable, "-m", "torch_backplane.cli", *words],
        env={**os.environ, "BACKPLANE_PLUGIN_PATH": str(library.parent)},
    )
    assert "beyond the tolerance" in done.stdout, done.stdout + done.stderr


def test_unknown_names_are_refused(tmp_path, capsys):
    assert command.certify(["nonesuch", "--out", str(tmp_path)]) == 2
    assert "has no plugin nonesuch" in capsys.readouterr().err
    assert command.certify(["/nowhere/libx.so", "--out", str(tmp_path)]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert command.certify(["reference", "--case", "nothing:*", "--out", str(tmp_path)]) == 2
    assert "no case of level 1 fits" in capsys.readouterr().err


def test_what_is_no_library_fails_cases(tmp_path):
    library = tmp_path / "libbackplane_text.so"
    library.write_text("not a library")
    assert command.certify([str(library), "--level", "0", "--out", str(tmp_path / "out")]) == 1
    result = json.loads((tmp_path / "out" / "report.json").read_text())
    assert result["reached"] == -1


# --- Waivers ---------------------------------------------------------------------------------------

WAIVER = {
    "cases": ["operators:add/*"],
    "issue": "ACME-1",
    "owner": "somebody",
    "end": "2027-01-01",
    "reason": "the adder is slow",
}


def write_waivers(path, *entries):
    path.write_text(json.dumps(list(entries)))
    return path


def test_waiver_covers_until_its_end(tmp_path):
    known = waivers.read(write_waivers(tmp_path / "w.json", WAIVER))
    outcomes = [{"id": "operators:add/f32/0", "verdict": "fail"}]
    waivers.apply(outcomes, known, TODAY)
    assert outcomes[0]["waived"] == {"issue": "ACME-1", "owner": "somebody"}
    late = [{"id": "operators:add/f32/0", "verdict": "fail"}]
    waivers.apply(late, known, datetime.date(2027, 1, 2))
    assert "waived" not in late[0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"end": "soon"}, "end:"),
        ({"owner": " "}, "owner is empty"),
        ({"cases": ["*"]}, "does not name one family"),
        ({"cases": ["oper*:add/*"]}, "does not name one family"),
        ({"cases": ["bounds:add/*"]}, "cannot be waived"),
        ({"cases": []}, "list of patterns"),
        ({"more": 1}, "expected cases, end"),
    ],
)
def test_waiver_that_says_too_little_is_refused(tmp_path, change, text):
    with pytest.raises(waivers.WaiverError, match=text):
        waivers.read(write_waivers(tmp_path / "w.json", WAIVER | change))


def test_waived_case_does_not_fail_a_level(as_mutant, tmp_path):
    library = as_mutant("counters-stand-still")
    arguments = [str(library), "--level", "1", "--out", str(tmp_path)]
    assert command.certify(arguments) == 1
    waiver = write_waivers(tmp_path / "w.json", WAIVER | {"cases": ["life:counters"]})
    assert command.certify([*arguments, "--waivers", str(waiver)]) == 0
    result = json.loads((tmp_path / "report.json").read_text())
    assert result["reached"] == 1 and result["waived"] == 1


# --- Reports ---------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Finds what a page would load, and whether its tags are closed."""

    def __init__(self):
        super().__init__()
        self.loads, self.open, self.headings = [], [], 0

    def handle_starttag(self, tag, attrs):
        self.loads += [v for k, v in attrs if k in ("src", "href")]
        self.headings += tag in ("h1", "h2")
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_stands_alone(certified):
    page_text = (certified / "report.html").read_text()
    found = Page()
    found.feed(page_text)
    assert found.loads == [] and found.open == [] and found.headings >= 5
    assert "Level 1 reached" in page_text and "@import" not in page_text


def test_page_escapes_what_a_plugin_says(certified):
    result = json.loads((certified / "report.json").read_text())
    result["cases"][0] |= {"verdict": "fail", "text": "<script>alert(1)</script>"}
    text = page.html(result)
    assert "<script>alert" not in text and "&lt;script&gt;alert(1)" in text


def test_junit_counts_every_case(certified):
    suites = ET.parse(certified / "junit.xml").getroot()
    result = json.loads((certified / "report.json").read_text())
    assert sum(int(s.get("tests")) for s in suites) == len(result["cases"])
    assert all(s.get("failures") == s.get("errors") == "0" for s in suites)


def test_a_run_of_chosen_cases_reaches_no_level(tmp_path):
    arguments = ["reference", "--level", "2", "--case", "operators:add/*", "--out", str(tmp_path)]
    assert command.certify(arguments) == 0
    result = json.loads((tmp_path / "report.json").read_text())
    assert result["reached"] == -1 and not result["badges"]


# --- Certificates ----------------------------------------------------------------------------------


@pytest.fixture
def signed(certified, tmp_path):
    key = tmp_path / "acme.pem"
    assert certificate.keygen([str(key)]) == 0
    result = json.loads((certified / "report.json").read_text())
    return certificate.write(result, key, tmp_path, TODAY), key.with_suffix(".pub")


def test_a_key_that_cannot_sign_is_told_before_the_run(tmp_path, capsys):
    (tmp_path / "key.pem").write_text("no key")
    arguments = ["reference", "--key", str(tmp_path / "key.pem"), "--out", str(tmp_path / "out")]
    assert command.certify(arguments) == 2
    assert "key.pem" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def refusal(path, plugin, key, today=TODAY):
    with pytest.raises(certificate.CertificateError) as error:
        certificate.check(path, plugin, key, today)
    return str(error.value)


def test_certificate_is_good_for_its_library(signed):
    path, key = signed
    found = certificate.check(path, REFERENCE, key, TODAY)
    assert found["level"] == 1 and found["signer"] == "acme"
    assert command.verify([str(path), str(REFERENCE), "--key", str(key)]) == 0


def test_private_key_is_its_owners(signed):
    _, key = signed
    assert key.with_suffix(".pem").stat().st_mode & 0o077 == 0
    assert certificate.keygen([str(key.with_suffix(".pem"))]) == 2  # never overwritten


def test_every_changed_bit_is_noticed(signed):
    """Of a certificate: each byte of its content, one bit at a time."""
    path, key = signed
    text = path.read_bytes()
    certificate.check(path, REFERENCE, key, TODAY)
    for at in range(len(text)):
        changed = bytearray(text)
        changed[at] ^= 1 << (at % 7)
        path.write_bytes(changed)
        assert refusal(path, REFERENCE, key), at


def test_a_changed_library_is_refused(signed, tmp_path):
    path, key = signed
    other = tmp_path / "libbackplane_reference.so"
    content = bytearray(REFERENCE.read_bytes())
    content[len(content) // 2] ^= 1
    other.write_bytes(content)
    assert "is for another library" in refusal(path, other, key)


def test_an_ended_certificate_is_refused(signed):
    path, key = signed
    assert "ended on" in refusal(path, REFERENCE, key, TODAY + datetime.timedelta(days=400))


def test_a_stranger_is_not_trusted(signed, tmp_path):
    path, _ = signed
    certificate.keygen([str(tmp_path / "other.pem")])
    assert "not trusted" in refusal(path, REFERENCE, tmp_path / "other.pub")


def test_nothing_is_trusted_by_itself(signed, tmp_path, monkeypatch):
    path, _ = signed
    monkeypatch.setattr(certificate, "TRUSTED", tmp_path / "nothing")
    assert "no key is trusted" in refusal(path, REFERENCE, None)


def test_what_is_no_certificate_is_refused(signed, tmp_path):
    _, key = signed
    other = tmp_path / "other.certificate"
    other.write_text("{}")
    assert "is no certificate" in refusal(other, REFERENCE, key)


LEVEL_3 = [
    "model:perceptron/*", "model:tied/f32.gradient/*", "eager:add/*", "eager:relu/*", "eager:nn.functional.gelu/*",
    "figures:*",
]  # fmt: skip


def run_of_level_3(library, folder):
    patterns = [word for case in LEVEL_3 for word in ("--case", case)]
    status = command.certify([str(library), "--level", "3", *patterns, "--out", str(folder)])
    return status, json.loads((folder / "report.json").read_text())["cases"]


def test_level_3_of_a_plugin_that_is_right(tmp_path):
    status, cases = run_of_level_3("reference", tmp_path)
    assert status == 0
    assert {c["verdict"] for c in cases} == {"pass"}
    assert {outcome.family(c["id"]) for c in cases} == {"model", "eager", "figures"}
    assert all(c["share"] > 0.9 for c in cases if outcome.family(c["id"]) == "model")


def test_level_3_finds_wrong_numbers(as_mutant, tmp_path):
    status, cases = run_of_level_3(as_mutant("result-absolute-error"), tmp_path)
    assert status == 1
    bad = {c["id"] for c in cases if c["verdict"] == "fail"}
    assert {"model:perceptron/f32/torch.compile", "model:perceptron/f32.steps/torch.compile"} <= bad
    assert any(case.startswith("eager:") for case in bad)


def test_case_counts_of_level_3(certified):
    target = worker.Target(REFERENCE, 0, certified / "corpus")
    cases = worker.list_cases(target, 3)
    assert len(cases) >= 8065
    assert len([case for case in cases if case["level"] == 3]) >= 900
