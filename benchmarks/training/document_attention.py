"""Attention that keeps documents apart, forward and backward: by their lengths, by a dense mask, and transformers'.

    python -m benchmarks.training.document_attention [--threads 2] [--rounds 5] [--longest 32768] [--keep]

fp32, one sample of eight documents of different lengths, 4 heads of 64 that share 2 keys. All take turns, each in a
process of its own, whose peak memory is read after its calls. "dense mask" is what this backend took before: torch's
flash attention with a mask of the sequence's square, made once and not timed; "transformers" is its own packing, by
positions that begin again, with `attn_implementation="sdpa"`, its mask made in every call as a model makes it once a
step. Speeds are minima over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import torch

from benchmarks import machine

DOCUMENTS, HEADS, GROUPS, SIZE = 8, 4, 2, 64
SYSTEMS = ("lengths", "dense mask", "transformers")
LENGTHS = (4096, 8192, 16384, 32768)


def ends_of(length: int) -> torch.Tensor:
    """Return where eight documents end, whose lengths are as 1 to 8."""
    share = torch.arange(1, DOCUMENTS + 1).cumsum(0) / (DOCUMENTS * (DOCUMENTS + 1) / 2)
    return torch.cat((torch.zeros(1), share * length)).round().int()


def system(name: str, length: int):
    """Return a function of query [s, 1, n, d], key and value [s, 1, g, d]."""
    from pretrain.conformance import examples
    from pretrain.cpu.plugin import pretrain_attention
    from pretrain.plugins.offer import Offer
    from pretrain.plugins.requests import Mask
    from pretrain.plugins.signatures import Documents

    ends = ends_of(length)
    kind = Mask.DOCUMENTS if name == "lengths" else Mask.ARBITRARY
    asked = examples.attention(
        torch.float32, kind, length=length, heads=HEADS, groups=GROUPS, size=SIZE, batch=1, block=512
    )
    kernel = next(answer for answer in pretrain_attention(asked) if isinstance(answer, Offer)).build({})
    if name == "lengths":
        return lambda *given: kernel(*given, Documents.of(torch.stack((ends, ends))))
    if name == "transformers":
        return packed_by_transformers(length, ends)
    document = torch.bucketize(torch.arange(length), ends[1:], right=True)
    masked = document[:, None] != document[None, :]
    masked |= torch.ones(length, length, dtype=torch.bool).triu_(1)
    return lambda *given: kernel(*given, masked[None, None])


def packed_by_transformers(length: int, ends: torch.Tensor):
    """Return transformers' attention of a Llama, and the mask that it makes of positions that begin again."""
    from torch import nn
    from transformers import LlamaConfig
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import create_causal_mask

    config = LlamaConfig(
        hidden_size=HEADS * SIZE,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        attn_implementation="sdpa",
        max_position_embeddings=length,
    )
    positions = torch.cat([torch.arange(size) for size in ends.diff().tolist()])[None]
    hidden = torch.zeros(1, length, HEADS * SIZE)
    module = nn.Module()
    module.num_key_value_groups, module.is_causal = HEADS // GROUPS, True

    def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        mask = create_causal_mask(
            config=config, inputs_embeds=hidden, attention_mask=None, past_key_values=None, position_ids=positions
        )
        q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
        return sdpa_attention_forward(module, q, k, v, mask, scaling=SIZE**-0.5)[0].flatten(2).transpose(0, 1)

    return call


def serve(name: str, length: int) -> None:
    """Print the output's sum, then for each line read the seconds of one call forward and backward."""
    call = system(name, length)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(length, 1, heads, SIZE, generator=generator) for heads in (HEADS, GROUPS, GROUPS)]
    for _ in sys.stdin:
        leaves = [x.requires_grad_() for x in given]
        begin = time.perf_counter()
        output = call(*leaves)
        output.backward(torch.ones_like(output))
        seconds = time.perf_counter() - begin
        digest = [output.double().abs().sum().item(), *(x.grad.double().abs().sum().item() for x in leaves)]
        for leaf in leaves:
            leaf.grad = None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(json.dumps({"seconds": seconds, "digest": digest, "peak": peak}), flush=True)


def measure(length: int, rounds: int, threads: int) -> dict[str, object]:
    """Return seconds and peak memory of each system, in turn; their results must agree."""
    command = [sys.executable, "-m", "benchmarks.training.document_attention", "--serve"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    served = {
        name: subprocess.Popen(
            [*command, name, str(length)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for name in SYSTEMS
    }
    seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    peak, digests = {}, {}
    for _ in range(rounds):
        for name, process in served.items():
            process.stdin.write("\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline())
            seconds[name].append(said["seconds"])
            peak[name], digests[name] = said["peak"], torch.tensor(said["digest"])
    for process in served.values():
        process.stdin.close()
        process.wait()
    for name, digest in digests.items():
        torch.testing.assert_close(
            digest, digests["lengths"], rtol=1e-4, atol=0, msg=lambda text, of=name: f"{of}: {text}"
        )
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "seconds": {name: round(value, 4) for name, value in best.items()},
        "peak_gib": {name: round(value / 2**20, 3) for name, value in peak.items()},
        "times_faster": {name: round(best[name] / best["lengths"], 2) for name in SYSTEMS[1:]},
    }


def main() -> None:
    """Measure all lengths and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve[0], int(arguments.serve[1]))
        return
    found = {}
    for length in (each for each in LENGTHS if each <= arguments.longest):
        found[length] = measure(length, arguments.rounds, arguments.threads)
        print(length, found[length], flush=True)
    if arguments.keep:
        described = machine.describe(arguments.threads)
        machine.keep("document_attention", described | {"rounds": arguments.rounds, "lengths": found})


if __name__ == "__main__":
    main()
