"""Programs that need an environment or processes of their own: forked from one that has imported torch_npu."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from forked_python import client

PROGRAMS = Path(__file__).parent / "processes"


def run(name, ranks=0, **environment):
    """Run processes/<name>.py, on its own or as ranks, and return each process's results, by rank."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    launcher += ["--rdzv-endpoint", "localhost:0", "--redirects", "0"]
    path = os.pathsep.join(str(folder) for folder in (PROGRAMS.parents[1], Path(client.__file__).parents[1]))
    environment = {**os.environ, "PYTHONPATH": path, client.BACKEND: "ascend", **environment}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", *(launcher if ranks else []), str(PROGRAMS / f"{name}.py"), folder]
        with tempfile.TemporaryFile("w+") as output:
            process = client.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
            try:
                code = process.wait(timeout=1200)
            finally:
                process.kill()
            output.seek(0)
            assert code == 0, output.read()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(max(1, ranks))]


def tell(found):
    """Report the results of this process in a file, because lines of several ranks in one pipe may be interleaved."""
    file = Path(sys.argv[1]) / f"{os.environ.get('RANK', '0')}.json"
    file.write_text(json.dumps(found))
