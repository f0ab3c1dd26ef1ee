import pytest
from engine import layouts, ranks
from engine.comparison import check
NAMES=("bf16, stage 0, TP","fp16, stage 3, TP","NeoX, stage 3, TP, sequence parallel")
def test_x(tmp_path, monkeypatch):
    import os, subprocess, sys
    (tmp_path/"sub.py").write_text(f"from engine import layouts\nlayouts.X={{n: layouts.DEEPSPEED_TWO_RANKS[n] for n in {NAMES!r}}}\nimport runpy,sys\nsys.argv=['r','X',{str(tmp_path)!r}]\nfrom engine import ranks\nranks.main()\n")
    import socket
    s=socket.socket(); s.bind(("127.0.0.1",0)); port=s.getsockname()[1]; s.close()
    env={**os.environ,"PYTHONPATH":"/work/main/tests","OMP_NUM_THREADS":"1","MASTER_ADDR":"127.0.0.1","MASTER_PORT":str(port),"WORLD_SIZE":"2"}
    ps=[subprocess.Popen([sys.executable,"-W","ignore",str(tmp_path/"sub.py")],env={**env,"RANK":str(r)}) for r in (0,1)]
    assert [p.wait(300) for p in ps]==[0,0]
    import json
    res=json.loads((tmp_path/"X.json").read_text())
    for n in NAMES: check(res[n], layouts.DEEPSPEED_TWO_RANKS[n])
