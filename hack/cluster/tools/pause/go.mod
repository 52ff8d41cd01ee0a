module speculator.dev/hack/cluster/tools/pause

go 1.26.0
