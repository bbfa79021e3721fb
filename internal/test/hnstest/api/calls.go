package api

import (
	"slices"
	"strings"
)

// Kind is a kind of HCN object, as in the names of calls.
type Kind string

const (
	NetworkKind      Kind = "Network"
	EndpointKind     Kind = "Endpoint"
	NamespaceKind    Kind = "Namespace"
	LoadBalancerKind Kind = "LoadBalancer"
	SdnRouteKind     Kind = "SdnRoute"
	CallbackKind     Kind = "Callback" // registrations: handles without an object
)

// Split splits the name of a call into verb and kind: HcnQueryNetworkProperties
// into Query and Network.
func Split(function string) (verb string, k Kind) {
	rest := strings.TrimSuffix(strings.TrimPrefix(function, "Hcn"), "Properties")
	for _, verb := range []string{"Enumerate", "Create", "Open", "Modify", "Query", "Delete", "Close"} {
		if k, ok := strings.CutPrefix(rest, verb); ok {
			return verb, Kind(strings.TrimSuffix(k, "s"))
		}
	}
	return rest, ""
}

// Known reports whether k is a kind of object.
func Known(k Kind) bool {
	return slices.Contains([]Kind{NetworkKind, EndpointKind, NamespaceKind, LoadBalancerKind, SdnRouteKind}, k)
}

// Arity returns the number of arguments of a call.
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

// IsHNS reports whether a call is one of HNS, as opposed to the IP stack.
func IsHNS(function string) bool { return strings.HasPrefix(function, "Hcn") || function == "HNSCall" }
