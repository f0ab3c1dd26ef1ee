"""This project with its layers compiled: kernels.compile: layer."""

from __future__ import annotations

from benchmarks.training.setting import Setting
from benchmarks.training.systems.pretrain import training
from benchmarks.training.train_step import serve

given = Setting.given()
serve(training(given, given.recipe(compile="layer")))
