"""Prints one line per JUnit file and a closing total. Arguments: NAME=FILE. Fails if a test failed,
or if a file is missing or holds no test."""

import sys
import xml.etree.ElementTree as ElementTree


def count(path: str) -> tuple[int, int, int]:
    """(passed, failed, skipped) of all test cases in a JUnit file."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(arguments: list[str]) -> int:
    total = [0, 0, 0]
    broken = False
    for argument in arguments:
        name, _, path = argument.partition("=")
        try:
            counts = count(path)
        except (OSError, ElementTree.ParseError) as error:
            print(f"{name:8} no result: {error}")
            broken = True
            continue
        print("{:8} {} passed, {} failed, {} skipped".format(name, *counts))
        broken |= counts[0] + counts[1] == 0
        total = [sum(pair) for pair in zip(total, counts, strict=True)]
    if broken:
        total[1] += 1
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
