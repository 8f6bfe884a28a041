"""`dafuse report RUN... [--out FOLDER]`."""

import argparse

from dafuse.report.command import report


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="dafuse report", description="Write a page and tables (md, csv, tex) about runs."
    )
    parser.add_argument("runs", nargs="+", help="run folders, or folders that contain some")
    parser.add_argument("--out", default="report", help="folder for the page and the tables")
    options = parser.parse_args(arguments)
    print(report(options.runs, options.out))
