#!/usr/bin/env bash
# The speedrun on a rented GPU, in steps: gpu.sh STEP...; README.md says in which order. One command may do several.
#
#   store       keep what was uploaded in carry/ (packed data, records), and a copy of this code
#   unpack:SET  unpack the pieces of a data set
#   smoke       does CUDA work? Where does the time of a step go?
#   alone       the runs whose seconds may be quoted: alone.txt
#   queue       start processes that share queue.txt, and go on without waiting for them
#   wait:N      wait until the processes end, N seconds at most
#   summary     print means and differences
#
# At its end, whatever happens, it copies records and logs to $OUT, a folder, if that is set.
# RUNS: where everything is kept between commands. MINUTES: since the first command, when the last run must have ended.
# WORKERS: processes of the queue. EXTRA: options for all of them; EXTRA=--tiny rehearses everything on a CPU.
# QUEUE, ALONE: other files than queue.txt and alone.txt. ALONE_MINUTES: for the runs alone.
set -uo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
RUNS=${RUNS:-/tmp/speedrun} MINUTES=${MINUTES:-25} WORKERS=${WORKERS:-3} EXTRA=${EXTRA:-} PYTHON=${PYTHON:-python3}
CODE=$RUNS/code/research/speedrun
export PYTHONPATH=$RUNS/code/src PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$RUNS/inductor}
mkdir -p "$RUNS/pieces" "$RUNS/data" "$RUNS/log"
[ -e "$RUNS/began" ] || date +%s > "$RUNS/began"

left() { # minutes until the end
    echo "$(((60 * MINUTES - $(date +%s) + $(cat "$RUNS/began")) / 60))"
}

running() { # processes of the queue that still run
    local pid
    for pid in $(cat "$RUNS/pids" 2> /dev/null); do
        if [ -d "/proc/$pid" ] && ! grep -q '^State:.Z' "/proc/$pid/status" 2> /dev/null; then echo "$pid"; fi
    done
}

collect() {
    [ -n "${OUT:-}" ] || return 0
    mkdir -p "$OUT"
    cp "$RUNS"/*.jsonl "$OUT" 2> /dev/null
    tail -n 400 "$RUNS"/log/* > "$OUT/logs.txt" 2> /dev/null
}
trap collect EXIT

cuda_works() {
    [ "$EXTRA" = "${EXTRA#*--tiny}" ] || return 0
    "$PYTHON" -c "import torch; print(torch.__version__, torch.cuda.get_device_name(), torch.ones(1, device='cuda').item())"
}

store() {
    if [ -z "$(running)" ]; then # not under the feet of what runs
        rm -rf "$RUNS/code"
        mkdir -p "$CODE"
        cp -r "$HERE/../../src" "$RUNS/code"
        cp "$HERE"/*.py "$HERE"/*.txt "$CODE"
    fi
    [ -d "$HERE/../../carry" ] || return 0
    find "$HERE/../../carry" -name '*.pack' -exec cp {} "$RUNS/pieces" \;
    find "$HERE/../../carry" -name '*.jsonl' -exec cp -n {} "$RUNS" \; # runs that are done are not done again
}

unpack() {
    "$PYTHON" "$CODE/pack.py" --unpack "$RUNS/pieces/$1".*.pack "$RUNS/data/$1"
}

smoke() {
    cuda_works && "$PYTHON" "$CODE/profile_steps.py" $EXTRA --records "$RUNS/profile.jsonl"
}

alone() {
    cp "${ALONE:-$CODE/alone.txt}" "$RUNS/alone.txt"
    "$PYTHON" "$CODE/speedrun.py" $EXTRA --data "$RUNS/data" --jobs "$RUNS/alone.txt" --alone \
        --records "$RUNS/alone.jsonl" --minutes "${ALONE_MINUTES:-6}" 2>&1 | tee -a "$RUNS/log/alone" ||
        echo "not all runs alone were made: going on"
}

queue() {
    local index
    if [ -n "$(running)" ]; then echo "they run already" && return 0; fi
    cp "${QUEUE:-$CODE/queue.txt}" "$RUNS/queue.txt"
    # With MPS the processes compute side by side instead of in turns.
    if [ "$WORKERS" -gt 1 ] && command -v nvidia-cuda-mps-control > /dev/null && nvidia-cuda-mps-control -d; then
        sleep 1
        if ! timeout 60 bash -c "$(declare -f cuda_works); EXTRA='$EXTRA' PYTHON='$PYTHON' cuda_works"; then
            echo "CUDA does not work with MPS: going on without it"
            echo quit | timeout 20 nvidia-cuda-mps-control
        fi
    fi
    : > "$RUNS/pids"
    for index in $(seq "$WORKERS"); do
        # a session of its own outlives the command
        setsid "$PYTHON" "$CODE/speedrun.py" $EXTRA --data "$RUNS/data" --jobs "$RUNS/queue.txt" --worker "$index/$WORKERS" \
            --records "$RUNS/records.jsonl" --minutes "$(left)" < /dev/null >> "$RUNS/log/worker$index" 2>&1 &
        echo $! >> "$RUNS/pids"
    done
    echo "$WORKERS processes, for $(left) minutes"
}

wait_for() {
    local until=$(($(date +%s) + $1))
    while [ -n "$(running)" ] && [ "$(date +%s)" -lt "$until" ]; do sleep 1; done
    echo "$(running | wc -l) processes run, $(cat "$RUNS/records.jsonl" 2> /dev/null | wc -l) records, $(left) minutes left"
    grep -h -A12 '^failed\|^stopped' "$RUNS"/log/* 2> /dev/null | tail -40
    return 0
}

summary() {
    "$PYTHON" "$CODE/speedrun.py" --summary $(ls "$RUNS/records.jsonl" "$RUNS/alone.jsonl" 2> /dev/null)
}

[ $# -gt 0 ] || sed -n '2,/^set/p' "${BASH_SOURCE[0]}" | grep '^#'
for step in "$@"; do
    echo "== $step, $(left) minutes left"
    case $step in
        store | smoke | alone | queue | summary) "$step" ;;
        unpack:*) unpack "${step#*:}" ;;
        wait:*) wait_for "${step#*:}" ;;
        *) echo "no such step: $step" >&2; exit 2 ;;
    esac || { echo "failed: $step" >&2; exit 1; }
done
