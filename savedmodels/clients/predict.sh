#!/bin/sh
# Ask a server by curl: its status, its signatures, and requests in every form that REST has.
#   HOST=localhost:8501 NAME=demo sh savedmodels/clients/predict.sh ["A sentence."]
set -eu

case "${1-}" in -h | --help) sed -n '2,3s/^# *//p' "$0"; exit ;; esac
model="http://${HOST:-localhost:8501}/v1/models/${NAME:-demo}"
# A sentence as JSON: the characters that JSON wants escaped.
text=$(printf '%s' "${1-The old woman opens the red door.}" | tr '\n\t' '  ' | sed 's/\\/\\\\/g; s/"/\\"/g')

ask() { # what is asked, then curl's arguments; an error's status and JSON are shown, too
    printf '\n# %s\n' "$1"
    shift
    curl --silent --show-error --fail-with-body --max-time 30 --retry 3 --retry-connrefused "$@"
}

ask "the versions and whether they are ready" "$model"

ask "row by row; with a single input its values alone" "$model:predict" \
    -d '{"instances": ["'"$text"'", "Two doors."]}'

ask "column by column" "$model:predict" \
    -d '{"inputs": {"text": ["'"$text"'", "Two doors."]}}'

ask "several inputs, row by row: every row has all of them" "$model:predict" -d '{
    "signature_name": "score",
    "instances": [{"source": "'"$text"'", "target": "Zwei Hunde."}, {"source": "Two doors.", "target": ""}]}'

ask "several inputs, column by column" "$model:predict" -d '{
    "signature_name": "score",
    "inputs": {"source": ["'"$text"'", "Two doors."], "target": ["Zwei Hunde.", ""]}}'

ask "the signatures with their inputs and outputs" "$model/metadata"
