# Read by every bash of a dry run, before its script. Notes where each command stands, keeps the stubs first in PATH
# whatever the script does to it, and puts one in the place of any interpreter that is called by its path.
# With RLDBG_DRY_INSIST the script is carried past its own checks (`exit 1`, set -eu), to see what lies behind them.
set -T
exec {BASH_XTRACEFD}>/dev/null
__rldbg_level=$BASH_SUBSHELL
__rldbg_outer=

__rldbg_before() {
  [[ $2 == "$RLDBG_DRY_PRELUDE" ]] && return 0
  # The script may still read what its own `=~` found; before 5.1 bash lets nobody put it back.
  local -a __rldbg_found=("${BASH_REMATCH[@]}")
  local __rldbg_verdict=0
  __rldbg_look "$@" || __rldbg_verdict=$?
  ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 501)) || BASH_REMATCH=("${__rldbg_found[@]}")
  return $__rldbg_verdict
}

__rldbg_look() {
  # The text of `bash -c` has no file: its commands stand where the script started that shell.
  [[ -z $2 && -n ${RLDBG_DRY_AT-} ]] || RLDBG_DRY_AT="$2:$3"
  RLDBG_DRY_OPTIONS=$SHELLOPTS
  __rldbg_captured "$1"
  __rldbg_note_empty "$1"
  if [[ $BASH_SUBSHELL == 0 && $$ == "$RLDBG_DRY_MAIN" ]] && ! __rldbg_has_ended "$2" "$3"; then
    [[ $1 == '['* || $1 == 'test '* || $1 == '(('* ]] && __rldbg_condition=$RLDBG_DRY_AT
    printf '%s\0' "$RLDBG_DRY_AT" "$1" "${__rldbg_condition-}" > "$RLDBG_DRY_RESULTS/last"
  fi
  [[ ${PATH-} == "$RLDBG_DRY_BIN":* ]] || __rldbg_in_front
  if [[ -n ${RLDBG_DRY_INSIST-} ]]; then
    # Only with extdebug can a command be left out; set any earlier, bash would look for its debugger.
    shopt -s extdebug
    set +eu
    if [[ -z ${__rldbg_ended-} && $1 =~ ^exit\ +([1-9]|\$\?) ]]; then
      printf '%s\n' "$RLDBG_DRY_AT" >> "$RLDBG_DRY_RESULTS/passed"
      return 1
    fi
  fi
  if [[ -n ${RLDBG_DRY_ELSEWHERE-} && $1 == *[\<\>]*/dev/tcp/* ]]; then
    # A service of the container answers, as it does to curl. A command that is left out succeeds.
    shopt -s extdebug
    return 1
  fi
  __rldbg_called_by_path "$1"
  return 0
}

# Whether the script has ended and its EXIT trap runs: there line 1 follows on a later line of the same file.
__rldbg_has_ended() {
  [[ -n ${__rldbg_ended-} ]] && return 0
  [[ ${__rldbg_file-} == "$1" && $2 == 1 && ${__rldbg_line-1} != 1 && ${FUNCNAME[3]-main} == main ]] && __rldbg_ended=1
  __rldbg_file=$1 __rldbg_line=$2
  [[ -n ${__rldbg_ended-} ]]
}

__rldbg_in_front() {
  local __rldbg_path=:${PATH-}:
  __rldbg_path=${__rldbg_path//":$RLDBG_DRY_BIN:"/:}
  __rldbg_path=${__rldbg_path#:}
  PATH=$RLDBG_DRY_BIN${__rldbg_path:+:${__rldbg_path%:}}
}

# Variables without a value that a command uses, unless it names another value for that case, and the script's arguments
# ($1, $#) that it asks for: a script that ends early may lack one of them.
__rldbg_note_empty() {
  local __rldbg_rest __rldbg_name
  [[ $1 == *'$'* ]] || return 0
  __rldbg_expanded "$1"
  while [[ $__rldbg_rest =~ \$(\{?)([A-Za-z_][A-Za-z0-9_]*|[1-9#])(:?[-=+])?(.?) ]]; do
    __rldbg_rest=${__rldbg_rest#*"${BASH_REMATCH[0]%"${BASH_REMATCH[4]}"}"}
    __rldbg_name=${BASH_REMATCH[2]}
    [[ -n ${BASH_REMATCH[1]} && -n ${BASH_REMATCH[3]} && ${BASH_REMATCH[4]} != '}' ]] && continue
    if [[ $__rldbg_name == [1-9#] ]]; then
      # In a function these are its own; ${#NAME} is a length.
      [[ ${FUNCNAME[3]-main} == main && ${BASH_REMATCH[1]}$__rldbg_name != '{#' ]] || continue
    elif [[ -n ${!__rldbg_name-} ]]; then
      continue
    fi
    printf '%s\0' "$RLDBG_DRY_AT" "$__rldbg_name" >> "$RLDBG_DRY_RESULTS/empty"
  done
}

# __rldbg_rest: the parts of a command that the shell expands, not those in single quotes.
__rldbg_expanded() {
  local __rldbg_left=$1 __rldbg_quoted
  __rldbg_rest=
  while [[ $__rldbg_left =~ ^([^\'\"]*)(\'[^\']*\'|\"([^\"\\]|\\.)*\") ]]; do
    __rldbg_rest+=${BASH_REMATCH[1]}
    __rldbg_quoted=${BASH_REMATCH[2]}
    __rldbg_left=${__rldbg_left:${#BASH_REMATCH[0]}}
    # In "$(...)" quotes begin anew.
    if [[ $__rldbg_quoted == \"*'$('* ]]; then
      __rldbg_left=${__rldbg_quoted:1:-1}$__rldbg_left
    elif [[ $__rldbg_quoted == \"* ]]; then
      __rldbg_rest+=$__rldbg_quoted
    fi
  done
  __rldbg_rest+=$__rldbg_left
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
  local rest=$1 first program starter=
  local -a __rldbg_stub=()
  while [[ $rest =~ ^[A-Za-z_][A-Za-z0-9_]*\+?=([^[:space:]\"\'\`\(]*|\"[^\"\`]*\"|\'[^\']*\')[[:space:]]+(.*)$ ]]; do
    [[ ${BASH_REMATCH[1]} == *'$('* ]] && return 0
    rest=${BASH_REMATCH[2]}
  done
  [[ -z ${__rldbg_starter-} ]] || unset -f "$__rldbg_starter"
  __rldbg_starter=
  if [[ $rest =~ ^(exec|command)[[:space:]]+((-[clp]+|-a[[:space:]]+[A-Za-z0-9_.-]+)[[:space:]]+)*([^-[:space:]].*)$ ]]; then
    starter=${BASH_REMATCH[1]}
    rest=${BASH_REMATCH[4]}
  fi
  [[ $rest =~ ^[\"]?[A-Za-z0-9_./~@\$\{\}:+-]+[\"]?(\[@\]\}[\"]?)? ]] || return 0
  first=${BASH_REMATCH[0]}
  [[ $first == */* || $first == *'$'* ]] || return 0
  # Only names and variables can be in `first`, so this expands them and runs nothing.
  # The script itself is to end, and to say why, if it demands (set -u) a variable that has no value.
  local options=$-
  set +u
  eval "program=( $first )" 2>/dev/null || program=()
  [[ $options != *u* ]] || set -u
  program=${program[0]-}
  [[ $program == */* ]] || return 0
  [[ $program =~ [^A-Za-z0-9_./@:+-] ]] && return 0
  __rldbg_started_by "$starter" "$program"
  declare -F -- "$program" >/dev/null && return 0
  if __rldbg_stub_for "$program"; then
    eval "function $program { ${__rldbg_stub[*]@Q} \"\$@\"; }" 2>/dev/null
  elif [[ -n ${RLDBG_DRY_ELSEWHERE-} && ! -e $program ]]; then
    eval "function $program { RLDBG_DRY_NAME='$program' '$RLDBG_DRY_BIN/.unknown' \"\$@\"; __rldbg_stay; }" 2>/dev/null
  fi
}

# __rldbg_stub: what starts in the place of a program that is called by its path, if anything does. Other shells than bash
# would start an interpreter by its path unseen.
__rldbg_stub_for() {
  local __rldbg_first=
  __rldbg_stub=()
  if [[ " $RLDBG_DRY_NAMES " == *" ${1##*/} "* ]]; then
    __rldbg_stub=(env "RLDBG_DRY_NAME=$1" "$RLDBG_DRY_BIN/.unknown")
  elif [[ ${1##*/} == @(sh|dash) ]]; then
    __rldbg_stub=("$RLDBG_DRY_BIN/sh")
  elif [[ -f $1 && -x $1 ]] && IFS= read -r __rldbg_first < "$1" && [[ $__rldbg_first == '#!'*[/\ ]@(sh|dash)?(\ *) ]]; then
    __rldbg_stub=("$RLDBG_DRY_BIN/sh" "$1")
  fi
  ((${#__rldbg_stub[@]}))
}

# `exec` and `command` start a program and no function: for this one command they are functions that start one.
__rldbg_started_by() {
  [[ -n $1 ]] && __rldbg_stub_for "$2" || return 0
  declare -F -- "$1" >/dev/null && return 0
  __rldbg_starter=$1
  if [[ $1 == exec ]]; then
    exec() {
      __rldbg_without_options "$@"
      exit
    }
  else
    command() { __rldbg_without_options "$@"; }
  fi
}

__rldbg_without_options() {
  while [[ $1 == -* ]]; do
    [[ $1 != -a ]] || shift
    shift
  done
  "$@"
}

# A program of a container that runs beside its shell serves something: it stays as long as the script starts others.
__rldbg_stay() {
  ((BASH_SUBSHELL > 0)) && [[ -z $RLDBG_DRY_CAPTURED ]] || return 0
  local before= now=0
  while [[ $before != "$now" ]]; do
    before=$now
    PATH=${PATH#*:} builtin command sleep 3
    now=$(printf '%s\n' "$RLDBG_DRY_RESULTS"/calls/* | wc -l)
  done
}

# Programs that start others cannot start one that is not installed; without them command_not_found_handle notes it.
__rldbg_prefix() {
  local __rldbg_name=$1 __rldbg_word __rldbg_program=
  shift
  for __rldbg_word; do
    [[ $__rldbg_word == -* || $__rldbg_word == *=* || $__rldbg_word =~ ^[0-9.]+[smhd]?$ ]] && continue
    [[ $__rldbg_word == @(nohup|setsid|nice|ionice|stdbuf|env|timeout) ]] && continue
    __rldbg_program=$__rldbg_word
    break
  done
  local -a __rldbg_stub=()
  if [[ $__rldbg_program == */* ]] && __rldbg_stub_for "$__rldbg_program"; then
    local -a __rldbg_words=()
    while [[ $1 != "$__rldbg_program" ]]; do
      __rldbg_words+=("$1")
      shift
    done
    builtin command "$__rldbg_name" "${__rldbg_words[@]}" "${__rldbg_stub[@]}" "${@:2}"
  elif [[ -z $__rldbg_program || $__rldbg_program == */* ]] || type -P -- "$__rldbg_program" >/dev/null; then
    builtin command "$__rldbg_name" "$@"
  else
    RLDBG_DRY_NAME=$__rldbg_name "$RLDBG_DRY_BIN/.unknown" "$@"
  fi
}
nohup() { __rldbg_prefix nohup "$@"; }
setsid() { __rldbg_prefix setsid "$@"; }
nice() { __rldbg_prefix nice "$@"; }
ionice() { __rldbg_prefix ionice "$@"; }
stdbuf() { __rldbg_prefix stdbuf "$@"; }
env() { __rldbg_prefix env "$@"; }
timeout() { __rldbg_prefix timeout "$@"; }

# Programs that start others among further words: the first one, or those that follow a word like $2.
__rldbg_among() {
  local __rldbg_name=$1 __rldbg_after=$2 __rldbg_word __rldbg_is_next=
  local -a __rldbg_words=() __rldbg_stub=()
  [[ -n $__rldbg_after ]] || __rldbg_is_next=1
  shift 2
  for __rldbg_word; do
    if [[ -n $__rldbg_is_next && $__rldbg_word == */* ]] && __rldbg_stub_for "$__rldbg_word"; then
      __rldbg_words+=("${__rldbg_stub[@]}")
      __rldbg_is_next=
    else
      __rldbg_words+=("$__rldbg_word")
    fi
    [[ -z $__rldbg_after ]] || { [[ $__rldbg_word == $__rldbg_after ]] && __rldbg_is_next=1 || __rldbg_is_next=; }
  done
  builtin command "$__rldbg_name" "${__rldbg_words[@]}"
}
xargs() { __rldbg_among xargs "" "$@"; }
flock() { __rldbg_among flock "" "$@"; }
strace() { __rldbg_among strace "" "$@"; }
watch() { __rldbg_among watch "" "$@"; }
xvfb-run() { __rldbg_among xvfb-run "" "$@"; }
find() { __rldbg_among find "-@(exec|ok)?(dir)" "$@"; }
# With a shell of its own choice, make starts nothing by itself.
make() { builtin command make SHELL="$RLDBG_DRY_BIN/sh" "$@"; }

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
