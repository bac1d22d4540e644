# Completion of kvtier for bash 4 and later: source <(kvtier completion bash)

__kvtier_complete() {
    local IFS=$'\n' line found directive=4 word
    local -a words

    # Bash splits words at = and :, kvtier does not.
    local typed="${COMP_LINE:0:COMP_POINT}"
    IFS=$' \t' read -r -a words <<<"$typed"
    [[ "$typed" == *[[:space:]] ]] && words+=("")
    local last="${words[-1]}" split="${COMP_WORDS[COMP_CWORD]}"
    # What of the last word bash takes for words of their own.
    local kept=""
    case "$split" in
        "=" | ":") kept="$last" ;;
        *) [[ "$last" == *"$split" ]] && kept="${last%"$split"}" ;;
    esac

    COMPREPLY=()
    while IFS= read -r line; do
        if [[ "$line" == :* ]]; then
            directive="${line#:}"
        else
            word="${line%%$'\t'*}"
            COMPREPLY+=("${word#"$kept"}")
        fi
    done < <("${words[0]}" __complete -- "${words[@]:1}" 2>/dev/null)

    if [[ "$directive" == 0 && ${#COMPREPLY[@]} == 0 ]]; then
        [[ "$split" == "=" ]] && split=""
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$split")
    fi
}

complete -F __kvtier_complete kvtier
