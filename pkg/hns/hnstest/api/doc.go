// Package api is the interface of HNS as the simulated machine offers it: the names of its calls, the codes of their
// results, its documents in both versions, and which of them it refuses. All of it is pure.
package api
