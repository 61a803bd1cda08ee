"""The bug zoo: realistic bugs that can be built into the trainer, and how well check and compare name them."""

from rldbg.trainer.zoo.bug import Bug
from rldbg.trainer.zoo.catalogue import BUGS, find_bug, injected
from rldbg.trainer.zoo.judging import failed_checks
from rldbg.trainer.zoo.matrix import Cell, Reference, bug_cells, clean_cells
from rldbg.trainer.zoo.matrix_runs import RESULTS, CellScore, MatrixScore, score_matrix
from rldbg.trainer.zoo.pairs import PAIRS, CleanPair, PairScore
from rldbg.trainer.zoo.runs import ZooRun, ZooRunner
from rldbg.trainer.zoo.scoring import BugScore, ZooScore, ZooTotals, score
