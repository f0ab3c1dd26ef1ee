"""A plugin of pytest that forks commands, which spares them imports, except those for the abacus: they change torch."""

from __future__ import annotations

import subprocess

from forked_python import client


class Popen(client.Popen):
    """As `subprocess.Popen`."""

    def _execute_child(self, args, *others, **options):
        popen = client.STARTED if "abacus" in args else client.Popen
        popen._execute_child(self, args, *others, **options)


subprocess.Popen = Popen
