"""Exchange of checkpoints with other programs: conversion, comparison, and training from theirs."""
