"""`kubectl_complete-speculator`: what kubectl runs to complete `kubectl speculator ...`, in the words that it expects.

kubectl passes the words after the plugin's name, the last one unfinished (perhaps empty), and reads one completion a
line and then `:4`, which says that file names are no completions.
"""

import os
import shlex
import sys

from speculator_operator.cli.main import app

PROGRAM = "kubectl-speculator"
NO_FILE_NAMES = ":4"


def main() -> None:
    """Print the completions of the words in sys.argv."""
    words = sys.argv[1:] or [""]
    os.environ |= {
        "_KUBECTL_SPECULATOR_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join([PROGRAM, *words]),
        "COMP_CWORD": str(len(words)),
    }
    try:
        app(prog_name=PROGRAM)
    finally:
        sys.stdout.write(f"\n{NO_FILE_NAMES}\n")


if __name__ == "__main__":
    main()
