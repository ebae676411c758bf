#!/bin/sh
# Build the tiny pair, serve it under Triton, stream one completion with its acceptance, compare it with the target
# alone, stop the server. However this ends, the server ends too; nothing here waits for ever.
# The ports can be moved: HTTP_PORT=8100 GRPC_PORT=8101 METRICS_PORT=8102 OPENAI_PORT=9100 make demo
set -eu
recipe=$(dirname "$0")/recipe.yaml
grpc=${GRPC_PORT:-8001}

build=$(trtspec build "$recipe")
# The kernel sends it SIGTERM, 15, when this shell is killed.
"$(dirname "$(command -v trtspec)")/python" -m trtspec.base.child $$ 15 trtspec deploy "$recipe" --timeout 60 \
    --http-port "${HTTP_PORT:-8000}" --grpc-port "$grpc" --metrics-port "${METRICS_PORT:-8002}" \
    --openai-port "${OPENAI_PORT:-9000}" &
server=$!
alone=$(mktemp)
trap 'kill -TERM $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$alone"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

generate() {
    timeout 60 trtspec generate --url "127.0.0.1:$grpc" "$@"
}

give_up() {
    echo "the server does not answer; the end of its log:" >&2
    tail -n 20 "$build/tritonserver.log" >&2
    exit 1
}

prompt='def fib(n):
    """Return the nth Fibonacci number."""
'
deadline=$(($(date +%s) + 90))
# Not with --wait, which would not notice that the server has ended; why, it has said itself.
until timeout 10 trtspec generate --url "127.0.0.1:$grpc" --max-tokens 1 "$prompt" >/dev/null 2>&1; do
    kill -0 $server 2>/dev/null
    test "$(date +%s)" -lt $deadline || give_up
    sleep 0.5
done

echo; echo "A completion, the draft proposing and the target verifying:"
generate --stream --max-tokens 120 "$prompt" || give_up
echo; echo "The same from the target alone:"
generate --no-stream --max-tokens 120 --num-draft-tokens 0 "$prompt" >"$alone" || give_up
generate --no-stream --max-tokens 120 "$prompt" 2>/dev/null | cmp - "$alone"
echo "same text"; echo

kill -TERM $server
wait $server
