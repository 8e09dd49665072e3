"""Name a misspelt variable of make: ``python3 launch/make_variables.py DRYRUN,HOST DRY_RUN,HOSTS``.

Takes the unknown variables on make's command line and those that it knows. Variables that resemble
none pass: they are environment variables for the programs, as in ``make sagemaker AWS_PROFILE=me``.
Uses the standard library only, because it runs before anything is installed.
"""

import difflib
import sys


def misspelt(given: str, known: list[str]) -> str | None:
    """The known variable that a given one resembles, if any."""
    plain = {name.replace("_", "").lower(): name for name in known}
    close = difflib.get_close_matches(given.replace("_", "").lower(), plain, n=1, cutoff=0.8)
    return plain[close[0]] if close else None


def main(unknown: str, known: str) -> None:
    """Print a line for each misspelt variable."""
    for given in unknown.split(","):
        if meant := misspelt(given, known.split(",")):
            sys.stdout.write(f"{given}: no such variable; did you mean {meant}?\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
