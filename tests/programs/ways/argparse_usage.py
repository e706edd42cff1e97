"""Does not know the option it is given."""

import argparse

parser = argparse.ArgumentParser(prog="train.py")
parser.add_argument("--epochs", type=int)
parser.parse_args()
