#compdef kvtier
# Completion of kvtier for zsh: source <(kvtier completion zsh)

_kvtier() {
    local line directive=4
    local -a found

    while IFS= read -r line; do
        if [[ "$line" == :* ]]; then
            directive="${line#:}"
        else
            local word="${line%%$'\t'*}" said=""
            [[ "$line" == *$'\t'* ]] && said="${line#*$'\t'}"
            found+=("${word//:/\\:}${said:+:$said}")
        fi
    done < <("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)

    if [[ "$directive" == 0 && ${#found} == 0 ]]; then
        compset -P '*='
        _files
    else
        _describe -V 'kvtier' found
    fi
}

if (( $+functions[compdef] )); then
    compdef _kvtier kvtier
else
    autoload -Uz compinit && compinit && compdef _kvtier kvtier
fi
