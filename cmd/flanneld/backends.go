package main

import (
	"fmt"
	"runtime"
	"strings"

	"flannel/backend"
	"flannel/backend/alloc"
	"flannel/backend/hostgw"
	"flannel/backend/vxlan"
	"flannel/subnet"
)

// backends is the table of what Backend.Type may name. A new backend is one package and one line here.
func backends() []backend.Kind {
	return []backend.Kind{vxlan.Kind(), hostgw.Kind(), alloc.Kind()}
}

// parseConfig validates a raw network configuration, the backend's part included: all problems at once.
func parseConfig(raw []byte) (subnet.Config, backend.Maker, []string, error) {
	config, root := subnet.ParseConfig(raw)
	object := root.Object("Backend")
	var maker backend.Maker
	var names []string
	for _, kind := range backends() {
		names = append(names, kind.Name)
		if kind.Name == config.Backend {
			maker = kind.Parse(object, runtime.GOOS)
		}
	}
	if maker == nil {
		what := "is missing"
		if config.Backend != "" {
			what = fmt.Sprintf("%.40q is none that this flanneld has", config.Backend)
		}
		object.Problem("Type", "%s; use one of: %s", what, strings.Join(names, ", "))
		return config, nil, nil, root.Err() // no warnings: nobody has read the backend's keys
	}
	return config, maker, root.Warnings(), root.Err()
}
