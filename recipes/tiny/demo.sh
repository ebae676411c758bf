#!/bin/sh
# Build the tiny pair, serve it under Triton, stream one completion with its acceptance, compare it with the target
# alone, stop the server.
# The ports can be moved: HTTP_PORT=9000 GRPC_PORT=9001 METRICS_PORT=9002 make demo
set -eu
recipe=$(dirname "$0")/recipe.yaml
grpc=${GRPC_PORT:-8001}

trtspec build "$recipe"
trtspec deploy "$recipe" --http-port "${HTTP_PORT:-8000}" --grpc-port "$grpc" --metrics-port "${METRICS_PORT:-8002}" &
server=$!
alone=$(mktemp)
trap 'kill -TERM $server 2>/dev/null || true; rm -f "$alone"' EXIT

prompt='def fib(n):
    """Return the nth Fibonacci number."""
'
# Not with --wait, which would not notice that the server has ended; why, it has said itself.
until trtspec generate --url "127.0.0.1:$grpc" --max-tokens 1 "$prompt" >/dev/null 2>&1; do
    kill -0 $server 2>/dev/null
    sleep 0.5
done

echo; echo "A completion, the draft proposing and the target verifying:"
trtspec generate --url "127.0.0.1:$grpc" --stream --max-tokens 120 "$prompt"
echo; echo "The same from the target alone:"
trtspec generate --url "127.0.0.1:$grpc" --no-stream --max-tokens 120 --num-draft-tokens 0 "$prompt" >"$alone"
trtspec generate --url "127.0.0.1:$grpc" --no-stream --max-tokens 120 "$prompt" 2>/dev/null | cmp - "$alone"
echo "same text"; echo

kill -TERM $server
wait $server
