module kvtier.dev/local/pause

go 1.26.0
