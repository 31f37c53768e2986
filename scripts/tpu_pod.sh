#!/usr/bin/env bash
# One run on all hosts of a Cloud TPU slice, by gcloud. Each step is a command of its own:
#
#   scripts/tpu_pod.sh create                        make the slice
#   scripts/tpu_pod.sh install                       copy this checkout to every host and install it there
#   scripts/tpu_pod.sh mount                         mount the shared folder NFS at /mnt/runs on every host
#   scripts/tpu_pod.sh start --config=... [...]      start the run on every host; the same command resumes it
#   scripts/tpu_pod.sh fetch WORKDIR TARGET          copy a workdir from the first host to this machine
#   scripts/tpu_pod.sh delete                        give the slice back, with all that lies on its hosts
#
# With --dry-run as first word the commands are printed and not run. Settings are variables of the environment:
#   NAME (jaxbed), ZONE (us-central2-b), TYPE (v4-16), VERSION (tpu-ubuntu2204-base), NFS (HOST:/SHARE, for mount), SPOT (1: preemptible)
set -euo pipefail

run() { "$@"; }
if [ "${1:-}" = --dry-run ]; then
    run() { printf '%q ' "$@" && echo; }
    shift
fi
NAME=${NAME:-jaxbed} ZONE=${ZONE:-us-central2-b} TYPE=${TYPE:-v4-16} VERSION=${VERSION:-tpu-ubuntu2204-base}
tpu() { run gcloud compute tpus tpu-vm "$@" --zone="$ZONE"; }
on_all() { tpu ssh "$NAME" --worker=all --command="$1"; }
archive=${TMPDIR:-/tmp}/jaxbed-checkout.tar.gz

step=${1:-}
[ $# -gt 0 ] && shift
case $step in
create)
    tpu create "$NAME" --accelerator-type="$TYPE" --version="$VERSION" ${SPOT:+--spot}
    ;;
install)
    run git archive --format=tar.gz --output="$archive" HEAD
    tpu scp "$archive" "$NAME:jaxbed.tar.gz" --worker=all
    # the hosts' own Python may be older than jaxbed needs
    on_all "mkdir -p jaxbed && tar xzf jaxbed.tar.gz -C jaxbed && python3 -m pip install --user --quiet uv && \
~/.local/bin/uv venv --allow-existing --python 3.12 jaxbed/.venv && VIRTUAL_ENV=jaxbed/.venv ~/.local/bin/uv pip install --quiet './jaxbed[tpu]'"
    ;;
mount)
    on_all "sudo apt-get install -qq -y nfs-common && sudo mkdir -p /mnt/runs && sudo mount -t nfs ${NFS:?set NFS=HOST:/SHARE} /mnt/runs"
    ;;
start)
    [ $# -gt 0 ] || { echo "start needs the words of a run, such as --config=sagnet:imagenet --workdir=/mnt/runs/sagnet" >&2; exit 2; }
    on_all "cd jaxbed && .venv/bin/python -m jaxbed.main$(printf ' %q' "$@")"
    ;;
fetch)
    [ $# -eq 2 ] || { echo "fetch needs two words: WORKDIR TARGET" >&2; exit 2; }
    tpu scp --recurse "$NAME:$1" "$2" --worker=0
    ;;
delete)
    tpu delete "$NAME" --quiet
    ;;
*)
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
    ;;
esac
