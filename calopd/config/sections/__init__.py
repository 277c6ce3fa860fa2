"""The sections of a configuration, one file each: every setting, its default (the paper's recipe) and its meaning."""

from calopd.config.sections.data import DataSection
from calopd.config.sections.emulation import EmulationSection
from calopd.config.sections.evaluation import EvaluationSection
from calopd.config.sections.learner import LearnerSection
from calopd.config.sections.method import MethodSection
from calopd.config.sections.queue import QueueSection
from calopd.config.sections.resources import ResourcesSection
from calopd.config.sections.rollout import RolloutSection
from calopd.config.sections.run import RunSection
from calopd.config.sections.student import StudentSection
from calopd.config.sections.teacher import TeacherSection
from calopd.config.sections.tracking import TrackingSection

__all__ = [
    "DataSection",
    "EmulationSection",
    "EvaluationSection",
    "LearnerSection",
    "MethodSection",
    "QueueSection",
    "ResourcesSection",
    "RolloutSection",
    "RunSection",
    "StudentSection",
    "TeacherSection",
    "TrackingSection",
]
