package conformance

import (
	"slices"
	"strings"
)

// failure is a test that is expected to fail, in some configurations.
type failure struct {
	name     string   // a part of the test's name
	backends []string // types
	reason   string
}

// expected are the failures that Documentation/conformance.md explains.
var expected = []failure{{
	name:     "should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes",
	backends: []string{"vxlan", "udp", "ipip", "wireguard"},
	reason:   "kube-proxy masquerades packets of the node itself to the address of the tunnel's device",
}}

// expectation returns why a test is expected to fail; nil: it is not.
func expectation(name, backend string) *failure {
	for i, f := range expected {
		if strings.Contains(name, f.name) && slices.Contains(f.backends, backend) {
			return &expected[i]
		}
	}
	return nil
}
