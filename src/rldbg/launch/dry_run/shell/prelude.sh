# Read by every bash of a dry run, before its script. Notes where each command stands, keeps the stubs first in PATH
# whatever the script does to it, and puts one in the place of any interpreter that is called by its path.
# With RLDBG_DRY_INSIST the script is carried past its own checks (`exit 1`, set -eu), to see what lies behind them.
set -T
exec {BASH_XTRACEFD}>/dev/null
__rldbg_level=$BASH_SUBSHELL
__rldbg_outer=

__rldbg_before() {
  [[ $2 == "$RLDBG_DRY_PRELUDE" ]] && return 0
  # The text of `bash -c` has no file: its commands stand where the script started that shell.
  [[ -z $2 && -n ${RLDBG_DRY_AT-} ]] || RLDBG_DRY_AT="$2:$3"
  RLDBG_DRY_OPTIONS=$SHELLOPTS
  __rldbg_captured "$1"
  [[ $BASH_SUBSHELL == 0 && $$ == "$RLDBG_DRY_MAIN" ]] && printf '%s' "$RLDBG_DRY_AT" > "$RLDBG_DRY_RESULTS/last"
  [[ ${PATH-} == "$RLDBG_DRY_BIN":* ]] || PATH=$RLDBG_DRY_BIN${PATH:+:$PATH}
  if [[ -n ${RLDBG_DRY_INSIST-} ]]; then
    # Only with extdebug can a command be left out; set any earlier, bash would look for its debugger.
    shopt -s extdebug
    set +eu
    if [[ $1 =~ ^exit\ +([1-9]|\$\?) ]]; then
      printf '%s\n' "$RLDBG_DRY_AT" >> "$RLDBG_DRY_RESULTS/passed"
      return 1
    fi
  fi
  __rldbg_called_by_path "$1"
  return 0
}

# Output that the script keeps for itself, `X=$(python x.py)`, is needed: then the command's text is part of the outer one.
__rldbg_captured() {
  if ((BASH_SUBSHELL <= __rldbg_level)); then
    __rldbg_level=$BASH_SUBSHELL
    __rldbg_outer=$1
    RLDBG_DRY_CAPTURED=
  elif [[ $__rldbg_outer == *'$('*"$1"* || $__rldbg_outer == *'`'*"$1"* ]]; then
    RLDBG_DRY_CAPTURED=1
  else
    RLDBG_DRY_CAPTURED=
  fi
}

__rldbg_called_by_path() {
  local rest=$1 first program
  while [[ $rest =~ ^[A-Za-z_][A-Za-z0-9_]*\+?=([^[:space:]\"\'\`\(]*|\"[^\"\`]*\"|\'[^\']*\')[[:space:]]+(.*)$ ]]; do
    [[ ${BASH_REMATCH[1]} == *'$('* ]] && return 0
    rest=${BASH_REMATCH[2]}
  done
  [[ $rest =~ ^[\"]?[A-Za-z0-9_./~@\$\{\}:+-]+[\"]?(\[@\]\}[\"]?)? ]] || return 0
  first=${BASH_REMATCH[0]}
  [[ $first == */* || $first == *'$'* ]] || return 0
  # Only names and variables can be in `first`, so this expands them and runs nothing.
  eval "program=( $first )" 2>/dev/null || return 0
  program=${program[0]-}
  [[ $program == */* && " $RLDBG_DRY_NAMES " == *" ${program##*/} "* ]] || return 0
  [[ $program =~ [^A-Za-z0-9_./@:+-] ]] && return 0
  declare -F -- "$program" >/dev/null && return 0
  eval "function $program { RLDBG_DRY_NAME='$program' '$RLDBG_DRY_BIN/.unknown' \"\$@\"; }" 2>/dev/null
}

command_not_found_handle() {
  RLDBG_DRY_NAME=$1 "$RLDBG_DRY_BIN/.unknown" "${@:2}"
}

: "${RLDBG_DRY_MAIN:=$$}"
export RLDBG_DRY_AT RLDBG_DRY_OPTIONS RLDBG_DRY_MAIN RLDBG_DRY_CAPTURED
if [[ -n ${RLDBG_DRY_RAISES_LIMITS-} ]]; then
  # Outside a sandbox this user may.
  ulimit() { builtin ulimit "$@" 2>/dev/null || (($# > 1)); }
fi
if [[ -n ${RLDBG_DRY_KEEP_OTHERS-} ]]; then
  # Without a process namespace, signals would reach the machine's real processes.
  kill() { [[ $1 != -0 ]] || builtin kill "$@"; }
fi
if [[ -n ${RLDBG_DRY_ELSEWHERE-} ]]; then
  # In a container or on another host, whose folders and files are not here.
  cd() { builtin cd "$@" 2>/dev/null || true; }
  source() { [[ ! -r $1 ]] || builtin source "$@"; }
  .() { source "$@"; }
fi
if [[ -n ${RLDBG_DRY_BASH_ENV-} && -r $RLDBG_DRY_BASH_ENV ]]; then . "$RLDBG_DRY_BASH_ENV"; fi
trap '__rldbg_before "$BASH_COMMAND" "${BASH_SOURCE[0]-}" "$LINENO"' DEBUG
