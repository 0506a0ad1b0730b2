"""An installation has every package, the programs, and one command for them."""

import argparse
import ast
import importlib
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from tf_transformer.extensions.interop.engines.portable import ONNX, LiteRT
from trainers.__main__ import PROGRAMS, run

ROOT = Path(__file__).parents[1]
TRAINERS = sorted((ROOT / "trainers").glob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
OTHERS = [f"savedmodels.{name}" for name in ("clients.rest", "clients.grpc_client")]
OTHERS += [f"examples.{name}" for name in ("multi30k.train", "table3.train", "claims.run", "claims.page")]
CONFIG = ConfigParser()
CONFIG.read(ROOT / "setup.cfg", encoding="utf-8")


def test_every_other_file_is_installed():
    folders = CONFIG["options.package_data"]
    named = {Path(*package.split("."), file) for package in folders for file in folders[package].split()}
    files = {path.relative_to(ROOT) for path in (ROOT / "tf_transformer").rglob("*") if path.is_file()}
    assert named == {path for path in files if path.suffix not in (".py", ".pyc")}


def test_programs_do_not_import_their_folder_by_name():
    """It has another name in the installed package."""
    for path in TRAINERS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not [name for name in names if name.split(".")[0] == "trainers"], path


def test_the_page_on_an_index_has_no_relative_links():
    command = [sys.executable, "setup.py", "--long-description"]
    page = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, encoding="utf-8").stdout
    assert "](https://example.org/tf_transformer/blob/main/docs/results.md)" in page
    assert 'src="https://example.org/tf_transformer/raw/main/docs/attention.png"' in page
    assert not re.findall(r'\]\((?!https?://)[^)]*\)|src="(?!https?://)', page)
    assert re.sub(r"https://example.org/tf_transformer/(raw|blob)/main/", "", page).strip() == README.strip()


def test_errors_name_extras_that_exist():
    """They are arguments of `import_extra(module, extra, ...)`, or attributes of engines."""
    named = {engine.package[1] for engine in (LiteRT, ONNX)}
    for path in (ROOT / "tf_transformer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_extra":
                named |= {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
    assert len(named) > 5
    assert named <= set(CONFIG["options.extras_require"])


@pytest.mark.parametrize("program", ["", *PROGRAMS, *OTHERS])
def test_help_fits_a_screen(program, capsys, monkeypatch):
    """This holds for the command, its programs, and other modules with options."""
    monkeypatch.setenv("COLUMNS", "110")
    if program in OTHERS:
        pytest.importorskip("tensorflow_serving" if "grpc" in program else "flask")
        main, args = importlib.import_module(program).main, [["--help"]]
        usage = "usage: "
    else:
        main, args = run, []
        usage = f"usage: python -m trainers {program or 'PROGRAM'} "
        monkeypatch.setattr("sys.argv", list(filter(None, ("x/__main__.py", program, "--help"))))
    with pytest.raises(SystemExit) as stopped:
        main(*args)
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(usage)
    assert len(lines) <= (40 if program.startswith("savedmodels") else 66) and max(map(len, lines)) <= 120
    assert program or [line.split()[0] for line in lines[3:12]] == [*PROGRAMS]


class Parsed(Exception):
    """Raised when a program parses its arguments."""


@pytest.mark.parametrize("program", [*PROGRAMS, *OTHERS])
def test_options_may_come_between_arguments(program, monkeypatch):
    if program in OTHERS:
        pytest.importorskip("tensorflow_serving" if "grpc" in program else "flask")
    for name in ("parse_args", "parse_intermixed_args"):
        method = getattr(argparse.ArgumentParser, name)

        def stop(parser, argv=None, method=method):
            raise Parsed(parser, method)

        monkeypatch.setattr(argparse.ArgumentParser, name, stop)
    package = "tf_transformer.extensions.conformance." if program == "check" else "trainers."
    with pytest.raises(Parsed) as parsed:
        importlib.import_module(program if program in OTHERS else package + program).main([])
    parser, parse = parsed.value.args
    for action in (*parser._actions, *parser._mutually_exclusive_groups):
        action.required = False
    parser.add_argument("--a-number", type=int)
    nargs = [action.nargs for action in parser._get_positional_actions()]
    values = ["one", "two", "three"][: len(nargs) + ("*" in nargs)]
    expected = vars(parse(parser, ["--a-number", "7", *values]))
    for index in range(len(values) + 1):
        assert vars(parse(parser, [*values[:index], "--a-number", "7", *values[index:]])) == expected


def test_one_command_has_all_programs():
    assert {*PROGRAMS} == {path.stem for path in TRAINERS if "run_program(main)" in path.read_text()} | {"check"}
    for command in (["trainers", "check", "--help"], ["trainers.translate", "--help"]):
        done = in_a_process(*command)
        assert done.stdout.startswith(f"usage: python -m {' '.join(command[:-1])} "), done.stderr


def test_bad_input_of_a_program_is_one_line():
    done = in_a_process("trainers", "check", "nowhere")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    done = in_a_process("trainers", "nothing")
    assert done.returncode == 2 and "choose from 'translation'" in done.stderr


def in_a_process(*argv):
    return subprocess.run([sys.executable, "-m", *argv], cwd=ROOT, capture_output=True, text=True)
