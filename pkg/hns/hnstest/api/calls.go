package api

import (
	"slices"
	"strings"
)

// Kind is a kind of HCN objects, as the names of the calls have it.
type Kind string

const (
	NetworkKind      Kind = "Network"
	EndpointKind     Kind = "Endpoint"
	NamespaceKind    Kind = "Namespace"
	LoadBalancerKind Kind = "LoadBalancer"
	SdnRouteKind     Kind = "SdnRoute"
	CallbackKind     Kind = "Callback" // handles only
)

// Split takes the name of a call apart: HcnQueryNetworkProperties is Query and Network.
func Split(function string) (verb string, k Kind) {
	rest := strings.TrimSuffix(strings.TrimPrefix(function, "Hcn"), "Properties")
	for _, verb := range []string{"Enumerate", "Create", "Open", "Modify", "Query", "Delete", "Close"} {
		if k, ok := strings.CutPrefix(rest, verb); ok {
			return verb, Kind(strings.TrimSuffix(k, "s"))
		}
	}
	return rest, ""
}

// Known reports whether there are objects of a kind.
func Known(k Kind) bool {
	return slices.Contains([]Kind{NetworkKind, EndpointKind, NamespaceKind, LoadBalancerKind, SdnRouteKind}, k)
}

// Arity is how many arguments a call has.
func Arity(function string) int {
	verb, _ := Split(function)
	switch {
	case function == "HcnCreateEndpoint" || function == "HNSCall":
		return 3
	case verb == "Create" || verb == "Modify" || verb == "Query":
		return 2
	}
	return 1
}

// IsHNS reports whether a call is one of HNS, and not of the IP stack.
func IsHNS(function string) bool { return strings.HasPrefix(function, "Hcn") || function == "HNSCall" }
