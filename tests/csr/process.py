"""One of several processes that compute rewards together; started by test_groups.py.

Arguments: rank, number of processes, file where they meet, JSON file with each case's rollouts of
every process. Prints, for every case, what the reward gave this process, or its error.
"""

import json
import sys

import torch.distributed as dist

from csr_trainer.rewards import CSR


def main(rank, processes, meeting, cases):
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(processes)
    )
    with open(cases, encoding="utf-8") as file:
        given = json.load(file)
    results = []
    for case in given:
        rollouts = case["rollouts"][int(rank)]
        logged = {}
        try:
            got = CSR("exact", num_generations=case["size"])(
                prompts=["p"] * len(rollouts),
                completions=[text for _, text in rollouts],
                row_id=[row for row, _ in rollouts],
                question=["Capital?"] * len(rollouts),
                answers=[["Oslo"]] * len(rollouts),
                log_extra=logged.__setitem__,
            )
            results.append({"rewards": got, **logged})
        except ValueError as error:
            results.append({"error": str(error)})
    print(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
