// Package api describes the interface of HNS for the simulated machine: the
// names and arguments of calls, result codes, documents of both versions, and
// which documents are refused. It has no state.
package api
