# What a step costs on this GPU, on made data of CIFAR's shape: full and pruned; then compiled; then with an ordinary loader.
set -u
D=${1:-/tmp/made}; O=${2:-/tmp/smoke.jsonl}
python3 - "$D" <<'P'
import sys, numpy as np, os
d = sys.argv[1]; os.makedirs(d, exist_ok=True); r = np.random.default_rng(0)
for s, n in (("train", 50000), ("test", 10000)):
    y = r.integers(0, 100, n); x = r.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    x[:, :10, :10, 0] = (y * 2)[:, None, None]; x[:, 10:20, :10, 1] = (y * 2)[:, None, None]
    np.save(f"{d}/{s}_x.npy", x); np.save(f"{d}/{s}_y.npy", y.astype(np.int64))
P
run() { python3 research/campaign/run.py headline --again --seeds 1 --limit 2 --data "$D" "$@"; }
nvidia-smi --query-gpu=name --format=csv,noheader
run --out "$O" --set epochs=8 eval_every=100 compensate=loss
run --out "$O" --set epochs=8 eval_every=100 compensate=loss compile=true
run --out "$O.loader" --set epochs=8 eval_every=100 compensate=loss feed=loader workers=12
