# Read by every bash of the cell before its script. It follows values that are not known: those of variables without one,
# and of programs that are not run. They stand between two signs that no script has, or as a number where the script
# calculates with them.
set -u -T
__open=$'\xe2\x9f\xa6' __close=$'\xe2\x9f\xa7'
unset HOSTNAME
. /.cell/values
declare -A __roots=()
for __last in ${CELL_ROOTS-}; do __roots[$__last]=$__last; done
__last='' __level=$BASH_SUBSHELL __from='' __names=()
mapfile -t __names </.cell/unknown
__seen=${#__names[@]}

command_not_found_handle() { CELL_PROGRAM=$1 /.cell/stubs/.stub "${@:2}"; }
cd() { builtin cd "$@" 2>/dev/null || :; }
pushd() { builtin pushd "$@" >/dev/null 2>&1 || :; }
popd() { builtin popd >/dev/null 2>&1 || :; }
mkdir() { command mkdir "$@" 2>/dev/null || :; }

__tell() { # KIND WORD...
    local file=/.cell/records/$EPOCHREALTIME-$BASHPID
    printf '%s\0' "$1" "$CELL_LINE" "$CELL_SOURCE" "$PWD" '' 0 '' $(($# - 1)) "${@:2}" >"$file"
}
__assigned() { # COMMAND -> __name, of the variable that it assigns
    local c=$1
    __name=
    while [[ $c == @(export|local|declare|readonly|typeset)\ * ]]; do c=${c#* }; done
    while [[ $c == -[a-zA-Z]*\ * ]]; do c=${c#* }; done
    [[ $c == 'for '*' in '* ]] && c=${c#for } && c=${c%% *}=
    c=${c%%=*}
    c=${c%+}
    c=${c%%\[*}
    [[ $c == [A-Za-z_]*([A-Za-z0-9_]) ]] && __name=$c
}
__is_condition() { [[ $1 == @('[ '|'[[ '|'test '|'(('|'case ')* ]]; }
__names_of() { # COMMAND NAME: whether the name is a variable in it
    [[ $1 == *\$?(\{)?([#!])$2 || $1 == *\$?(\{)?([#!])$2[^A-Za-z0-9_]* ]] ||
        [[ $1 == *'(('* && " $1 " == *[^A-Za-z0-9_]$2[^A-Za-z0-9_]* ]]
}
__make_unknown() { # NAME ROOT
    [[ -v __defined[$1] ]] && return
    __roots[$1]=$2
    if [[ -v __numbers[$2] ]]; then [[ $1 != "$2" ]] || printf -v "$1" %s "${__numbers[$2]}"; else printf -v "$1" %s "$__open$2$__close"; fi
}
__follow() { # what the last command did
    local n r value
    __assigned "$__last"
    if ((${#__names[@]} > __seen)); then
        if [[ -n $__name ]]; then
            __make_unknown "$__name" "$__name"
            __tell unknown "$__name" "$__last"
        elif [[ $__last == *\|* ]] || __is_condition "$__last" || [[ -n $__from ]]; then
            __tell used "${__names[-1]}" "$__last"
        fi
        return
    fi
    [[ -n $__name ]] || return
    for n in "${!__roots[@]}"; do
        r=${__roots[$n]}
        [[ $n != "$__name" ]] && __names_of "$__last" "$n" || continue
        eval "value=\"\${$__name[*]-}\""
        if [[ $value == *"$__open"* ]]; then __roots[$__name]=$r; else __make_unknown "$__name" "$r"; fi
    done
}
__ask() { # CONDITION ARGUMENT...: what it looks at, where that is not known
    local c=$1 n text=
    shift
    for n in "${!__roots[@]}"; do
        __names_of "$c" "$n" && __tell condition "${__roots[$n]}" "$c"
    done
    [[ $c == *'$('* || $c == *\`* ]] && return
    eval "text=\"${c//\"/}\"" 2>/dev/null
    [[ $text == *"$__open"* ]] && n=${text#*"$__open"} && __tell condition "${n%%"$__close"*}" "$c"
    [[ $c == *' -'[defrsLx]' '* ]] && __tell files "$c"
    return 0
}
__take_place() { # COMMAND ARGUMENT...: stand for a program that is named by its path, or a file that is not there
    local c=$1 n
    local -a words=()
    shift
    while [[ $c == [A-Za-z_]*([A-Za-z0-9_])=*([^\ \'\"\$\(])\ * ]]; do c=${c#* }; done
    n=${c%% *}
    [[ $n == @(source|.) ]] && n=${c#* } && n=${n%% *}
    [[ $c == *'$('* || $c == *\`* ]] && [[ $n == *[\(\`]* ]] && return
    [[ $n == *['();&|<>=']* ]] && return
    eval "words=($n)" 2>/dev/null
    n=${words[0]-}
    if [[ $c == @(source|.)\ * ]]; then
        [[ -e $n || -z $n || ! -e $__folder/$n ]] || cp "$__folder/$n" "$n"
        if [[ -e $n ]]; then __tell sourced "$n"; else __tell missing "$n"; command mkdir -p "${n%/*}"; : >"$n"; fi
    elif [[ $n == */* && $n != /.cell/* && -n ${n##*/} && $n != *[[:space:]\'\"\$\\]* ]]; then
        [[ -x $n && ! -f /.cell/stubs/${n##*/} && $n != *.py ]] && return
        eval "function $n { CELL_PROGRAM=$n /.cell/stubs/.stub \"\$@\"; }"
    fi
} 2>/dev/null
__before() { # COMMAND LINE SOURCE ARGUMENT...
    local - c=$1 n line=$2 source=$3
    [[ $source == /.cell/* ]] && return
    set +xuef
    shift 3
    mapfile -t __names </.cell/unknown
    ((__level == BASH_SUBSHELL)) && [[ -n $__last ]] && __follow
    __seen=${#__names[@]} __level=$BASH_SUBSHELL __last=$c __from=
    [[ -n $source ]] && export CELL_LINE=$line CELL_SOURCE=$source
    export CELL_SEEN=$__seen CELL_SUBSTITUTES=0
    [[ $c == *'$('* || $c == *\`* ]] && CELL_SUBSTITUTES=1
    for n in "${!__defined[@]}"; do
        [[ ${!n-} == "${__defined[$n]}" ]] && continue
        [[ ${!n@a} == *[aA]* ]] && unset "$n"
        printf -v "$n" %s "${__defined[$n]}"
    done 2>/dev/null
    if __is_condition "$c"; then
        __ask "$c" "$@"
    elif [[ $c == 'exec '* && $c != 'exec '[0-9\<\>\&\{]* ]]; then
        __take_place "${c#exec }" "$@"
        trap - DEBUG
        eval "${c#exec }"
        exit
    else
        __take_place "$c" "$@"
    fi
    return 0
}
export CELL_LINE=${CELL_LINE-0} CELL_SOURCE=${CELL_SOURCE-}
trap '__before "$BASH_COMMAND" "$LINENO" "${BASH_SOURCE[0]-}" "$@"' DEBUG
