# Stands for a program that is not run: its arguments are written down, and its output stays unknown.
program=${CELL_PROGRAM:-$0}
unset CELL_PROGRAM
base=${program##*/}
state=${BASH_SOURCE[0]%/stubs/*}
program=${program#"$state/stubs/"}
record=$state/records/${EPOCHREALTIME:-$(date +%s.%N)}-$$
PATH=${PATH//"$state/stubs:"/}

unknown_before() { # the program whose output is in the arguments
    local -a names
    [[ ${CELL_SUBSTITUTES-} == 1 ]] || return 0
    mapfile -t names <"$state/unknown"
    ((${#names[@]} > CELL_SEEN)) && printf %s "${names[-1]}"
}
files() { # as they are now: the script may remove them afterwards
    local word
    for word; do
        word=${word#*=}
        [[ $word == *.json && -f $word ]] && printf '%s\0%s\0' "$word" "$(head -c 300000 "$word")"
    done
}
write() {
    {
        printf '%s\0' run "${CELL_LINE:-0}" "${CELL_SOURCE-}" "$PWD" "${CELL_AROUND-}" "${CELL_AROUND_AT-0}" \
            "$(unknown_before)" "$#" "$@"
        files "$@"
    } >"$record.part"
    mv "$record.part" "$record"
}
shell() { # the commands that a launcher hands to a shell, or to another machine
    export PATH=$state/stubs:$PATH SLURM_PROCID=${SLURM_PROCID-0} SLURM_NODEID=${SLURM_NODEID-0}
    export SLURM_LOCALID=${SLURM_LOCALID-0}
    exec "$BASH" "$@"
}
within() { # the first shell, or script, among the arguments
    local -i at
    export CELL_AROUND=${record##*/} CELL_AROUND_AT
    for ((at = 1; at <= $#; at++)); do
        CELL_AROUND_AT=$at
        case ${!at} in
            bash | sh | */bash | */sh) shell "${@:at+1}" ;;
            *.sh | *.bash) [[ -f ${!at} ]] && shell "${@:at}" ;;
        esac
    done
    unset CELL_AROUND CELL_AROUND_AT
}
elsewhere() {
    local word next=
    for word; do
        [[ $next ]] && shell -c "$word"
        [[ $word == --wrap=* ]] && shell -c "${word#*=}"
        [[ $word == --wrap ]] && next=1
    done
    [[ $base == ssh && ${!#} == *' '* ]] && shell -c "${!#}"
}
trains() { [[ " $* " =~ (pretrain_|preprocess_data|deepy\.py|train\.py|torch\.distributed|torch/distributed) ]]; }

case $base in
    sh | dash | ksh | zsh) shell "$@" ;;
    sleep | clear | wait) exit 0 ;;
    python*)
        if [[ -n ${CELL_REAL-} ]] && ! trains "$@"; then exec "$base" "$@"; fi
        if [[ ${1-} == -c || ${1--} == - ]]; then BASH_ENV='' "$base" -I "$@" && exit 0; fi
        ;;
esac
write "$program" "$@"
case $base in
    ssh | sbatch) (elsewhere "$@") ;;
    bash | python* | torchrun | deepspeed | accelerate) ;;
    *) (within "$@") ;;
esac
if [[ -f $state/answers/$base ]]; then
    cat "$state/answers/$base"
else
    echo "$base" >>"$state/unknown"
    printf '\xe2\x9f\xa6%s\xe2\x9f\xa7\n' "$base"
fi
exit 0
