"""``python -m dltutorial …`` is the same program as ``dltutorial …``."""

import sys


def main() -> int:
    """The command line, loaded here, so that a Ctrl-C meanwhile ends in one line as it does later."""
    try:
        from dltutorial import cli

        return cli.main()
    except KeyboardInterrupt:
        print("dltutorial: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
