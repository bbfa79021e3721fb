// Package windows simulates the Windows machine of a lab node: the machine of
// internal/test/hnstest with a Body (see New) that acts on the network namespace of
// the process, so that the networks of HNS carry packets. For tests in another
// process it accepts orders, which make calls fail or change the machine as
// somebody else than the daemon would, and reports its state.
package windows
