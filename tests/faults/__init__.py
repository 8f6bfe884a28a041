"""The storm: kills, full disks, damaged files, hostile pictures and requests, by the thousand.

make faults                                            # all parts, five minutes
PYTHONPATH=tests python -m faults kills --minutes 30   # one part
PYTHONPATH=tests python -m faults kills --seed 1234 --trials 1   # one trial again

`trial.py` says what a trial and a part are, `storm.py` runs them and prints the table.
"""
