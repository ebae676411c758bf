#!/bin/sh
# Build the tiny pair, serve it under Triton, stream one completion with its acceptance, stop the server.
# The ports can be moved: HTTP_PORT=9000 GRPC_PORT=9001 METRICS_PORT=9002 make demo
set -eu
recipe=$(dirname "$0")/recipe.yaml
grpc=${GRPC_PORT:-8001}

trtspec build "$recipe"
trtspec deploy "$recipe" --http-port "${HTTP_PORT:-8000}" --grpc-port "$grpc" --metrics-port "${METRICS_PORT:-8002}" &
server=$!
trap 'kill -TERM $server 2>/dev/null || true' EXIT

trtspec generate --wait 120 --url "127.0.0.1:$grpc" --stream --max-tokens 120 'class Stack:
    """A last-in, first-out list."""

    def __init__(self):
'
kill -TERM $server
trap - EXIT
wait $server
