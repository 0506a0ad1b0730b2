"""What the programs have in common: how they end."""

import os
import sys


def run(main) -> None:
    """Run a program: what the user gave wrong is one line and exit status 2, Ctrl-C is 130."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped; start it again with the same options to go on", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from tf_transformer.config import BadInput

        if not isinstance(error, BadInput | FileNotFoundError | FileExistsError):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
