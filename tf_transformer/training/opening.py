"""How `tt.load` finds out whether a path is a run, without a framework, and opens it."""

import contextlib
from typing import TYPE_CHECKING

from tf_transformer.inference.loading import Opener
from tf_transformer.utils.files import user_path
from tf_transformer.utils.folders import CTRANSLATE2_FILE, LITERT_FILE, ONNX_FILE, newest
from tf_transformer.utils.lazy import lazily
from tf_transformer.utils.reading import read_json
from tf_transformer.utils.values import BadInput

if TYPE_CHECKING:
    from tf_transformer.models import families
    from tf_transformer.training import tasks
else:
    families = lazily("tf_transformer.models.families", "a run")
    tasks = lazily("tf_transformer.training.tasks", "a run")


def is_run(path: str) -> bool:
    """Returns whether a directory holds a run, rather than an export or a pretrained checkpoint."""
    folder = user_path(path)
    if not (folder / "config.json").is_file() or newest(folder, LITERT_FILE, ONNX_FILE, CTRANSLATE2_FILE):
        return False
    with contextlib.suppress(BadInput):  # A damaged file also belongs to a run.
        if "recipe" in read_json(folder / "config.json"):
            return True
    return families.family_of_folder(folder) is None


OPENS_RUN = Opener(
    title="a run",
    can_open=is_run,
    open=lambda folders, **options: tasks.open_runs(folders, **options),
    rebuild=lambda folders, **options: tasks.from_runs(folders, **options),
    takes=frozenset({"average_last", "step"}),
    opens_several=True,
    is_trainable=True,
)
