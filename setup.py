"""The packages, and README.md as the page on an index, where its relative links and pictures would lead nowhere.

So these become absolute here: setup.cfg, which has everything else, can read a file but not change its text. README.md
itself keeps relative links, since they lead to the files of the same commit.
"""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
config = ConfigParser()
config.read(HERE / "setup.cfg", encoding="utf-8")
source = dict(re.findall(r"(\w+) = (\S+)", config["metadata"]["project_urls"]))["Source"]
text = (HERE / "README.md").read_text(encoding="utf-8")
text = re.sub(r'src="(?!\w+:)', f'src="{source}/raw/main/', text)
text = re.sub(r"\]\((?!\w+:|#)", f"]({source}/blob/main/", text)
setup(long_description=text, packages=[*find_packages(include=["tf_transformer*"]), "tf_transformer.trainers"])
