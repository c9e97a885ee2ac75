"""The harness of faults: whatever is damaged, cut off or made up, nothing ends with status 0 and a wrong result.

A case is one fault and one command. It must come to one of these (`outcomes.py`):

- the same bits as without the fault (of a run: model, ledger, rows, states, summary without times; of `predict`: the
  same CSV; of `report`: the same page);
- refused with status 2, 3 or 4, and a line that names the file or key;
- other bits, which is said: in a federation `rounds.jsonl` names the silo that has lost its state, after `--reset` the
  summary names the silo that began afresh, the page of a run without its summary says that it is unfinished, and that
  of a run without a method beside it names that method.

Never status 0 with other bits, a traceback, a change to a file outside of the run's folder, a temporary file that is
left behind, or 10 s of CPU or 1 GB beyond the undamaged command.

Cases, by the parts of their names:

    SUBJECT:crash:KIND:N:WORKERS               a run is struck at its N-th operation on a file, and continued
    SUBJECT:twice:KIND:N:M                     so is the command that continues it, at its M-th
    SUBJECT:STAGE:ACTION:FILE:DAMAGE:SEED      a file or folder of a run is damaged, then ACTION is carried out
    SUBJECT:STAGE:reset                        a silo begins afresh, and the summary says so
    SUBJECT:STAGE:edit=KEY                     a key of an interrupted run is edited
    SUBJECT:STAGE:older-folder                 a copy of the whole folder from an earlier point is continued
    again-START:crash:KIND:N:WORKERS           a comparison, audit or call in Python is struck, and started again
    again-START:twice:KIND:N:M                 so is the start that continues it
    flower-METHOD:...                          the same of a federation: files of the server, `run/`, and of silos
    fuzz:FAMILY:SEED                           bad configurations, tables, arrays, images, inputs of predictions

SUBJECT is a method or a variant (`subjects.py`; methods join from `METHODS` by themselves). STAGE is "finished" or
"at-I", one of eight points of the run. KIND is kill (before the operation), torn (in the middle of it) or full (no
space from there on). What can be damaged is found by walking the folder, and what is an operation by patching
Python's ways to the system, so that files and operations that are added later join by themselves.

Where what is:

    children.py    a command in a forked child of this process, which has imported everything: 0.1 s, not 3 s
    points.py      counts operations on files below a folder, and strikes at one: kill, torn, full
    damages.py     flip, truncate, delete, nul, older, swapped, link, link-to-copy, dangling
    subjects.py    settings of runs; actions.py: what is done with them; bits.py: what they come to
    material.py    each subject's undisturbed run, and copies of its folder at earlier points
    cases.py       cases of runs; told_cases.py: of what a user says; federation*.py: of federations
    again.py       of what is continued by being started again: `compare`, `audit`, `caveat.run`
    fuzz*.py       of bad input
    selection.py   which cases are carried out: `SHORT` in tests/faults, `LONG` in benchmarks/faults.py

`python benchmarks/faults.py --case NAME` carries out one case and says what came of it; `--only SUBJECT` those of one
subject; without either, the long form. Everything is drawn by seeds: a case has the same outcome wherever it runs.

An undisturbed run that is not repeatable, or fails, raises `HarnessError`: then no case says anything.
"""
