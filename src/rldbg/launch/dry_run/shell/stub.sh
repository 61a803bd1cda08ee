# Runs in place of a command during a dry run. Notes how it was called; then does nothing, or what is harmless:
# Python written into the script itself really runs, as does a program whose output the script keeps; programs that
# start others are answered by answer.py.
# A note is a file of NUL-ended words: place, shell options, launcher's note, folder, number of words, the words, the
# environment.
shopt -s extglob
# `env -i` empties the environment; the folders are found again by this file's own place.
export RLDBG_DRY_BIN=${RLDBG_DRY_BIN:-${0%/*}}
export RLDBG_DRY_RESULTS=${RLDBG_DRY_RESULTS:-${RLDBG_DRY_BIN%/*}/results}
# A shell script cannot see its own argv[0]; found by PATH, the bare name is what was written.
name=$0
[[ ${name%/*} == "$RLDBG_DRY_BIN" ]] && name=${name##*/}
name=${RLDBG_DRY_NAME:-$name}
unset RLDBG_DRY_NAME
id=${EPOCHREALTIME:-$(date +%s.%N)}
id=${id/,/.}-$$
# Programs, also modules, that are here now: the script may have written them.
there=
for word in "$name" "$@"; do
  [[ ($word == */* || $word == *.@(py|sh)) && -f $word ]] && there+=$word$'\n'
  [[ $word == [A-Za-z_]* && $word != */* && (-f ${word//.//}.py || -f ${word//.//}/__main__.py) ]] && there+=$word$'\n'
done
[[ -n ${RLDBG_DRY_UNSEEN-} ]] || {
  printf '%s\0' "${RLDBG_DRY_AT-}" "${RLDBG_DRY_OPTIONS-}" "${RLDBG_DRY_VIA-}" "$PWD" "$(($# + 1))" "$name" "$@"
  RLDBG_DRY_THERE=$there env -0
} > "$RLDBG_DRY_RESULTS/calls/$id.part" && mv "$RLDBG_DRY_RESULTS/calls/$id.part" "$RLDBG_DRY_RESULTS/calls/$id"

really() {
  PATH=:$PATH:
  PATH=${PATH//":$RLDBG_DRY_BIN:"/:}
  PATH=${PATH#:}
  export PATH=${PATH%:}
  unset BASH_ENV
  # Not longer than ten seconds, and without the variables of the dry run.
  unset "${!RLDBG_DRY@}"
  # There is no run yet that an agent could report to.
  unset RLDBG_RUN
  exec -a "$name" timeout --foreground 10 "${name##*/}" "$@"
}

case ${name##*/} in
  python* | pypy*)
    # How many GPUs or nodes the cluster has: as `ray status` in answer.py, enough for any script that waits for them.
    if [[ $* == *ray.@(cluster_resources|available_resources|nodes)\(* && $* == *print* ]]; then
      echo 512
      exit 0
    fi
    [[ "$1 $2" == "-m pip" && " $RLDBG_DRY_PIP_QUESTIONS " == *" ${3-} "* ]] && really "$@"
    for word; do
      case $word in
        -c | - | -V | --version | -VV | -*c) really "$@" ;;
        -*) ;;
        *) break ;;
      esac
    done
    [[ $# == 0 ]] && really
    [[ -n ${RLDBG_DRY_CAPTURED-} && -f $word && ${word##*/} != *@(train|ppo|grpo|main)* ]] && really "$@"
    exit 0
    ;;
  rm | pkill | killall | fuser | shutdown | reboot | scancel | torchrun | deepspeed | accelerate | trl) exit 0 ;;
  *)
    RLDBG_DRY_CALL=$id exec "$RLDBG_DRY_PYTHON" -I -S -c \
      "import sys; sys.path.insert(0, sys.argv.pop(1)); from rldbg.launch.dry_run.stub import main; main(sys.argv[1:])" \
      "$RLDBG_DRY_PACKAGES" "$name" "$@"
    ;;
esac
