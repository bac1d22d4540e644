# Completion of kvtier for fish: kvtier completion fish | source

function __kvtier_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    set -l lines ($words[1] __complete -- $words[2..-1] $last 2>/dev/null)
    set -l directive $lines[-1]
    set -l found $lines[1..-2]
    if test "$directive" = ":0"; and test (count $found) -eq 0
        __fish_complete_path (string replace -r '^--[^=]*=' '' -- $last)
    else
        printf '%s\n' $found
    end
end

complete -c kvtier -f -a '(__kvtier_complete)'
