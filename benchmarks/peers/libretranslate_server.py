"""LibreTranslate with a package for Argos Translate, in an environment of its own.

    /venvs/libretranslate/bin/python benchmarks/peers/libretranslate_server.py PACKAGE PORT

Nothing is downloaded: a regular expression replaces its sentence splitter, and `boot`, which updates models, does
nothing. PACKAGE is a file .argosmodel, and is installed in a temporary directory.
"""

import os
import re
import sys
import tempfile

DIRECTORIES = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")


def main(package: str, port: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(dict.fromkeys(DIRECTORIES, folder), ARGOS_INTRA_THREADS="1", ARGOS_INTER_THREADS="2")
        os.environ.setdefault("ARGOS_DEVICE_TYPE", "cpu")
        os.chdir(folder)  # it writes files into the current directory
        from argostranslate import package as packages
        from argostranslate import sbd
        from libretranslate import init

        packages.install_from_path(package)
        sbd.MiniSBDSentencizer.split_sentences = lambda self, text: re.split(r"(?<=[.!?])\s+", text)
        init.boot = lambda *args, **options: None
        from libretranslate.main import main as program

        sys.argv[1:] = ["--host", "127.0.0.1", "--port", port, "--threads", "64", "--disable-web-ui"]
        program()


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]), sys.argv[2])
