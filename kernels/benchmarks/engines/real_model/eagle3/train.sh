#!/bin/bash
# Trains an EAGLE-3 head on a CPU: answers of the target through vLLM, an export, its preparation, hidden states, training.
#
#   train.sh WORK OUT      (train.py's docstring says what each step does; all paths and budgets are variables below)
#
# A server of the target may run already (SERVER_URL), with --served-model-name smollm2 and --enable-scale-out, without
# which vLLM 0.33 does not render chats for others.  Nothing here needs a GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) work=$1 out=$2
: "${TARGET:?the folder of the target}" "${CORPORA:?public texts, with gsm8k/ and gutenberg_prose/}"
: "${KNOWN:?prompts that are measured}" "${SPECULATORS:?the environment of speculators}" "${VLLM:?that of vLLM}"
: "${SHADOWSPEC:=shadowspec}" "${THREADS:=$(nproc)}" "${STOP_FILE:=/nonexistent}" "${PROMPTS_PER_CLASS:=350}"
: "${BUDGET:=2040}" "${ANSWERS:=330}" "${STATES:=300}"   # seconds: in all, and for these steps at most
begun=$(date +%s)
say() { echo "== $(( $(date +%s) - begun )) s: $*"; }
mkdir -p "$work"
# Threads that spin for each other lose most of their time where something else runs too.
export OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$work/hf" TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS="$THREADS"

say prompts
[ -s "$work/prompts.jsonl" ] || python3 -W ignore "$here/train.py" prompts "$CORPORA" --known "$KNOWN" \
  --number "$PROMPTS_PER_CLASS" --out "$work/prompts.jsonl"

export TARGET VLLM
server=
if [ -z "${SERVER_URL:-}" ]; then
  SERVER_URL=http://127.0.0.1:18440
  KV=3 CORES=0-$((THREADS - 1)) setsid "$here/serve.sh" 18440 "$work/server.log" --max-num-seqs 64 --enable-scale-out & server=$!
  trap '[ -z "$server" ] || kill -TERM -- -"$server" 2>/dev/null || true' EXIT
  until curl -sf "$SERVER_URL/health" >/dev/null; do kill -0 "$server"; sleep 1; done
fi
say answers
rm -f "$work/log.jsonl"
python3 "$here/train.py" answers "$work/prompts.jsonl" --url "$SERVER_URL" --model smollm2 --seconds "$ANSWERS" \
  --stop-file "$STOP_FILE" --out "$work/log.jsonl"
say export
cat >"$work/shadowspec.toml" <<EOF
[database]
url = "sqlite:///$work/shadow.db"
[privacy]
hash_secret_file = "$work/secret"
[endpoints.smollm2]
target = "$TARGET"
served_models = ["smollm2"]
match = { model = "smollm2" }
labels = { class = ["code", "maths", "chat", "edit"] }
slice_by = ["class"]
loads = [{ concurrency = 1 }]
[[endpoints.smollm2.candidates]]
name = "eagle3-own"
proposer = "eagle3"
draft = "$out"
num_speculative_tokens = 3
EOF
(umask 077; echo "a benchmark on public text has no secrets" >"$work/secret")
rm -rf "$work/training" "$work/prepared"
"$SHADOWSPEC" export-training --config "$work/shadowspec.toml" --endpoint smollm2 --traffic "$work/log.jsonl" \
  --out "$work/training"
say prepare
"$SPECULATORS/bin/speculators" prepare-data --model "$TARGET" --data "$work/training/conversations.jsonl" \
  --render-endpoint "${RENDER_URL:-$SERVER_URL}" --output "$work/prepared" --seq-length 1024 --no-skip-token-freq \
  --num-preprocessing-workers "$THREADS" >"$work/prepare.log" 2>&1 || { tail -20 "$work/prepare.log"; exit 1; }
if [ -n "$server" ]; then kill -TERM -- -"$server"; server=; fi
if [ -n "${AFTER_SERVER:-}" ]; then eval "$AFTER_SERVER"; fi
say states
"$SPECULATORS/bin/python" "$here/train.py" states "$TARGET" "$work/prepared" --seconds "$STATES" --stop-file "$STOP_FILE"
say train
"$SPECULATORS/bin/python" -W ignore "$here/train.py" train "$TARGET" "$work/prepared" --work "$work/checkpoints" \
  --out "$out" --texts "$work/prompts.jsonl" --seconds $(( BUDGET - ($(date +%s) - begun) - 60 )) \
  --stop-file "$STOP_FILE" ${TRAIN_OPTIONS:-} >"$work/train.log" 2>&1 || { tail -20 "$work/train.log"; exit 1; }
grep -a -E "^ *[0-9]+ s, step|^draft vocabulary" "$work/train.log"
say done
