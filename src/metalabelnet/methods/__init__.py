"""The table of methods, by the name used on the command line. To add one, write its file and add a line below."""

from __future__ import annotations

from metalabelnet.methods.bootstrap import Bootstrap
from metalabelnet.methods.clean_only import CleanOnly
from metalabelnet.methods.co_teaching import CoTeaching
from metalabelnet.methods.cross_entropy import CrossEntropy
from metalabelnet.methods.dividemix import DivideMix
from metalabelnet.methods.dmlp import DMLP
from metalabelnet.methods.elr import ELR
from metalabelnet.methods.elr_plus import ELRPlus
from metalabelnet.methods.fine_tune import FineTune
from metalabelnet.methods.fixmatch import FixMatch
from metalabelnet.methods.forward import Forward
from metalabelnet.methods.gce import GCE
from metalabelnet.methods.glc import GLC
from metalabelnet.methods.joint_optimization import JointOptimization
from metalabelnet.methods.l2rw import L2RW
from metalabelnet.methods.linear_metalabelnet import LinearMetaLabelNet
from metalabelnet.methods.logistic import LogisticBoth, LogisticClean, LogisticGiven, LogisticMethod
from metalabelnet.methods.meta_weight_net import MetaWeightNet
from metalabelnet.methods.metalabelnet import MetaLabelNet
from metalabelnet.methods.metalabelnet_plus import MetaLabelNetPlus
from metalabelnet.methods.method import Method, MethodTraits
from metalabelnet.methods.mlc import MLC
from metalabelnet.methods.mlnt import MLNT
from metalabelnet.methods.mslg import MSLG
from metalabelnet.methods.pencil import Pencil
from metalabelnet.methods.recipe import Recipe
from metalabelnet.methods.sce import SCE
from metalabelnet.methods.sop import SOP
from metalabelnet.methods.sop_plus import SOPPlus
from metalabelnet.methods.ssr import SSR
from metalabelnet.methods.t_revision import TRevision
from metalabelnet.methods.task import Task

__all__ = ["LINEAR_METHODS", "METHODS", "LogisticMethod", "Method", "MethodTraits", "Recipe", "Task"]

METHODS: dict[str, type[Method]] = {
    "cross-entropy": CrossEntropy,
    "clean-only": CleanOnly,
    "fine-tune": FineTune,
    "fixmatch": FixMatch,
    "glc": GLC,
    "metalabelnet": MetaLabelNet,
    "metalabelnet-plus": MetaLabelNetPlus,
    "sce": SCE,
    "gce": GCE,
    "bootstrap": Bootstrap,
    "forward": Forward,
    "co-teaching": CoTeaching,
    "joint-optimization": JointOptimization,
    "pencil": Pencil,
    "mslg": MSLG,
    "meta-weight-net": MetaWeightNet,
    "mlnt": MLNT,
    "t-revision": TRevision,
    "elr": ELR,
    "elr-plus": ELRPlus,
    "sop": SOP,
    "sop-plus": SOPPlus,
    "l2rw": L2RW,
    "dividemix": DivideMix,
    "mlc": MLC,
    "ssr": SSR,
    "dmlp": DMLP,
    "logistic-given": LogisticGiven,
    "logistic-clean": LogisticClean,
    "logistic-both": LogisticBoth,
}

# Methods that are fitted to fixed features in place of training a network. `metalabelnet-plus` is one of them on tables
# and texts only, unless a network is chosen; the others on all samples.
LINEAR_METHODS: dict[str, type[LogisticMethod]] = {
    "metalabelnet-plus": LinearMetaLabelNet,
    **{name: method for name, method in METHODS.items() if issubclass(method, LogisticMethod)},
}
